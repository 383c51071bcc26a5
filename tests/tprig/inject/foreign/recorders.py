"""Lets recorders watch vLLM's own callables, which return what the test wants them to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tprig_inject.hooks import Hooks
from tprig_inject.recorders import stages
from tprig_inject.recorders.stages import initialised, tensor_digest
from tprig_inject.seams import with_overrides
from tprig_inject.session import Session
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.v1.worker.gpu.async_utils import AsyncOutput
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from tests.tprig.inject.foreign.sampling import mask_tensors, sampled

Records = list[dict[str, Any]]


# --- digests -----------------------------------------------------------------------------------


def strides() -> dict[str, str]:
    """Digests of the same numbers, laid out in memory in different ways, and of others."""
    rows = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    wide = torch.full((4, 12), -1.0)
    wide[:, ::2] = rows
    return {
        "contiguous": tensor_digest(rows),
        "transposed": tensor_digest(rows.t().contiguous().t()),
        "every other column": tensor_digest(wide[:, ::2]),
        "part of a larger one": tensor_digest(torch.cat([wide, wide])[4:, ::2]),
        "that needs a gradient": tensor_digest(rows.clone().requires_grad_()),
        "other numbers": tensor_digest(rows + 1),
        "another order": tensor_digest(rows.t()),
    }


def dtypes(names: list[str]) -> dict[str, Any]:
    """The `stage` record of a tensor of each dtype, by dtype."""
    records: Records = []
    digest = stages.Digester(SimpleNamespace(step=0, write=records.append))  # type: ignore[arg-type]
    for name in names:
        digest("embedding", torch.ones((2, 3), dtype=getattr(torch, name)))
    return dict(zip(names, records, strict=True))


def empty_and_scalar() -> list[str]:
    """Digests of a tensor without elements and of one without dimensions."""
    return [tensor_digest(torch.empty((0, 4))), tensor_digest(torch.tensor(1.5))]


def rows_with_junk(junk: int, counts: list[int]) -> dict[str, Any]:
    """The initialised part of rows of 4, of which `counts` are written, the rest being `junk`."""
    rows = torch.full((len(counts), 4), junk, dtype=torch.int64)
    for row, count in enumerate(counts):
        rows[row, :count] = torch.arange(min(4, count)) + 10 * row
    written = initialised(rows, torch.tensor(counts))
    return {"values": written.tolist(), "digest": tensor_digest(written)}


# --- runs --------------------------------------------------------------------------------------


def verify(steps: list[dict[str, Any]], seams: dict[str, Any] | None = None) -> Records:
    """What the `verification` recorder writes.

    Args:
        steps: `requests` (engine core's id, drafts, sampled tokens, tokens before the logits) of
            each step, and whether it had `scheduled` any token.
        seams: new shapes of seams.
    """
    given = (step for step in steps if step["scheduled"])

    def execute_model(self: Any, scheduler_output: Any) -> None:
        pass

    def sample(self: Any, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        # The engine prepares the next step in the same buffer.
        input_batch.input_ids.fill_(-9)
        requests = next(given)["requests"]
        return sampled(
            [r["sampled"] for r in requests], slots=4, drafted=[len(r["drafts"]) for r in requests]
        )

    GPUModelRunner.execute_model, GPUModelRunner.sample = execute_model, sample
    records: Records = []
    session = Session(Hooks(with_overrides(seams or {})))
    session.begin(
        write=records.append, recorders=["verification"], faults=[], model_runner=object()
    )
    for step in steps:
        scheduled = SimpleNamespace(total_num_scheduled_tokens=int(step["scheduled"]))
        GPUModelRunner.execute_model(None, scheduled)
        if step["scheduled"]:
            GPUModelRunner.sample(None, None, _batch(step["requests"]), grammar_output=None)
    session.end()
    return records


def _batch(requests: list[dict[str, Any]]) -> Any:
    """A flattened batch: each request's tokens before its logits, its last token, its drafts."""
    ids: list[int] = []
    logits: list[int] = []
    bounds = [0]
    for request in requests:
        ids += [5] * request["before"]
        logits += range(len(ids), len(ids) + 1 + len(request["drafts"]))
        ids += [6, *request["drafts"]]
        bounds.append(len(logits))
    return SimpleNamespace(
        req_ids=[request["id"] for request in requests],
        input_ids=torch.tensor([*ids, 0, 0], dtype=torch.int32),
        logits_indices=torch.tensor(logits),
        cu_num_logits_np=np.array(bounds, dtype=np.int32),
        num_scheduled_tokens=np.array(
            [request["before"] + 1 + len(request["drafts"]) for request in requests]
        ),
    )


class _Layer(torch.nn.Module):  # type: ignore[misc]
    """Returns its hidden states alone, or with a residual, as decoder layers do."""

    def __init__(self, residual: torch.Tensor | None) -> None:
        super().__init__()
        self.residual = residual

    def forward(self, hidden: torch.Tensor) -> Any:
        return hidden * 2 if self.residual is None else (hidden * 2, self.residual)


class _Head:
    def apply(self) -> torch.Tensor:
        return torch.ones(4)


class _Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Identity()
        self.layers = torch.nn.ModuleList([_Layer(None), _Layer(torch.zeros(2))])
        self.layernorm = torch.nn.Identity()
        self.lm_head = SimpleNamespace(quant_method=_Head())

    def forward(self, hidden: torch.Tensor) -> None:
        for module in (self.embed_tokens, *self.layers, self.layernorm):
            module(hidden)


MASK = [[[1, 2], [3]], [[4, 5, 6]]]


def record_stages(names: list[str], faults: list[str]) -> Records:
    """What the recorders of these stages write in two steps of a model with two layers."""
    model = _Model()
    original = _stub_stages()
    records: Records = []
    session = Session(Hooks())
    session.begin(
        write=records.append,
        recorders=[f"stage:{name}" for name in names],
        faults=faults,
        model_runner=SimpleNamespace(model=model),
    )
    for _ in range(2):
        GPUModelRunner.execute_model(None, SimpleNamespace(total_num_scheduled_tokens=1))
        _pass_all_stages(model)
    session.end()
    assert not any(module._forward_hooks for module in model.modules())
    assert not vars(model.lm_head.quant_method)
    assert all(owner.__dict__[name] is function for owner, name, function in original)
    written = len(records)
    _pass_all_stages(model)
    assert len(records) == written
    return records


def _stub_stages() -> list[tuple[Any, str, Any]]:
    def execute_model(self: Any, scheduler_output: Any) -> None:
        pass

    def sample(self: Any, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        mask = mask_tensors(MASK, slots=4, width=6)
        return sampled([[1, 3], [4]], slots=4, drafted=[3, 3], mask=mask)

    def verify(self: Any, logits: Any, draft_logits: Any, draft_sampled: Any) -> Any:
        return torch.ones(2), None

    def sample_plainly(self: Any, logits: Any, expanded_idx_mapping: Any) -> Any:
        return None, torch.zeros(3)

    def gather(self: Any, logits: Any) -> Any:
        return torch.cat([logits, logits])

    def get_output(self: Any) -> Any:
        return SimpleNamespace(sampled_token_ids=[[1, 3], [], [4]])

    stubs: list[tuple[Any, str, Any]] = [
        (GPUModelRunner, "execute_model", execute_model),
        (GPUModelRunner, "sample", sample),
        (RejectionSampler, "_verify", verify),
        (Sampler, "sample", sample_plainly),
        (LogitsProcessor, "_gather_logits", gather),
        (AsyncOutput, "get_output", get_output),
    ]
    for owner, name, function in stubs:
        setattr(owner, name, function)
    return stubs


def _pass_all_stages(model: _Model) -> None:
    model(torch.ones(2))
    LogitsProcessor._gather_logits(None, model.lm_head.quant_method.apply())
    RejectionSampler._verify(None, None, None, None)
    Sampler.sample(None, None, None)
    GPUModelRunner.sample(None, None, None, None)
    AsyncOutput.get_output(None)


def digests() -> dict[str, str]:
    """Digests of what the stubs return, by what they are."""
    return {
        "local": tensor_digest(torch.ones(4)),
        "gathered": tensor_digest(torch.ones(8)),
        "verified": tensor_digest(torch.tensor([1, 3, 4])),
        "num_sampled": tensor_digest(torch.tensor([2, 1], dtype=torch.int32)),
        "mask": tensor_digest(torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.int32)),
        "counts": tensor_digest(torch.tensor([2, 1, 0, 0, 3, 0, 0, 0], dtype=torch.int32)),
    }
