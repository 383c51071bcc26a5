"""Plants faults in vLLM's own callables and lets them strike."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tprig_inject.hooks import Hooks
from tprig_inject.session import Session
from vllm.v1.outputs import SamplingMaskLists
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode import rejection_sampler

from tests.tprig.inject.foreign.sampling import mask_tensors, sampled, supports_of

Supports = list[list[list[int]]]


def strike(fault: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Plant a fault in `GPUModelRunner.sample` and make some calls of it.

    Args:
        fault: its name.
        calls: `supports` (request -> slot -> token ids; None for an output without a mask) and
            `tokens` (request -> emitted tokens) of each call.

    Returns:
        `supports` of each call as the scheduler gets them, the `records` that were written, and
        whether the original was `restored`.
    """
    given = iter(calls)

    def sample(self: Any, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        call = next(given)
        mask = None
        if call["supports"] is not None:
            mask = mask_tensors(call["supports"], slots=4, width=6)
        return sampled(call["tokens"], slots=4, drafted=[3] * len(call["tokens"]), mask=mask)

    GPUModelRunner.sample = original = sample
    records: list[dict[str, Any]] = []
    session = _session(records, fault, model_runner=object())
    seen: list[Any] = []
    for call in calls:
        output, *_ = GPUModelRunner.sample(None, None, None, None)
        seen.append(None if call["supports"] is None else supports_of(output))
    session.end()
    return {
        "supports": seen,
        "records": records,
        "restored": GPUModelRunner.__dict__["sample"] is original,
    }


def lose(requests: list[list[list[int]]]) -> dict[str, Any]:
    """Plant `mask-lost`, and slice each request's supports out of one step's.

    Returns:
        `slices`, `records` and `restored` as `strike` has them.
    """
    flat = [support for supports in requests for support in supports]
    masks = SamplingMaskLists(
        np.array([token for support in flat for token in support], dtype=np.int32),
        np.cumsum([0, *map(len, flat)]),
        np.cumsum([0, *map(len, requests)]).tolist(),
    )
    original = SamplingMaskLists.__dict__["slice_request"]
    records: list[dict[str, Any]] = []
    session = _session(records, "mask-lost", model_runner=None)
    slices = [
        masks.slice_request(index, len(supports)).to_nested_list()
        for index, supports in enumerate(requests)
    ]
    session.end()
    restored = SamplingMaskLists.__dict__["slice_request"] is original
    return {"slices": slices, "records": records, "restored": restored}


def _session(records: list[dict[str, Any]], fault: str, model_runner: object) -> Session:
    session = Session(Hooks())
    session.begin(write=records.append, recorders=[], faults=[fault], model_runner=model_runner)
    return session


def verify(fault: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Plant a fault behind `rejection_sample`, and make some calls of vLLM's own function.

    Args:
        fault: its name.
        calls: `target` (rows of logits; None for -inf), `drafts` (request -> drafted tokens),
            `draft` (request -> rows of the drafter's logits; None without) and `seed`.

    Returns:
        `sampled` of each call, `honest` of the same calls without the fault, `records`, and
        whether the original was `restored`.
    """
    original = rejection_sampler.rejection_sample
    honest = [_verified(call) for call in calls]
    records: list[dict[str, Any]] = []
    session = _session(records, fault, model_runner=object())
    planted = [_verified(call) for call in calls]
    session.end()
    return {
        "sampled": planted,
        "honest": honest,
        "records": records,
        "restored": rejection_sampler.rejection_sample is original,
    }


def _verified(call: dict[str, Any]) -> list[list[int]]:
    """Request -> what it samples in one call."""
    drafts = call["drafts"]
    steps = max(map(len, drafts))
    rows = [len(tokens) + 1 for tokens in drafts]
    states = torch.arange(len(drafts), dtype=torch.int32)
    draft = None if call.get("draft") is None else _logits(call["draft"])
    sampled, counts = rejection_sampler.rejection_sample(
        torch.stack([_logits(row) for row in call["target"]]),
        draft,
        torch.tensor([token for tokens in drafts for token in [0, *tokens]], dtype=torch.int32),
        torch.tensor([0, *np.cumsum(rows)], dtype=torch.int32),
        torch.arange(sum(rows)) + 3,
        states,
        states.repeat_interleave(torch.tensor(rows)),
        torch.cat([torch.arange(n, dtype=torch.int32) for n in rows]),
        torch.ones(len(drafts)),
        torch.full((len(drafts),), call["seed"]),
        steps,
    )
    return [sampled[i, :n].tolist() for i, n in enumerate(counts.tolist())]


def _logits(values: Any) -> Any:
    """Nested lists with None for what is impossible, as a tensor."""
    if isinstance(values[0], list):
        return torch.stack([_logits(row) for row in values])
    return torch.tensor([-float("inf") if x is None else x for x in values], dtype=torch.float32)


def flatten(requests: list[list[list[int]]]) -> dict[str, Any]:
    """Plant `mask-inactive-row-copied`, and flatten one step's fixed rows.

    Returns:
        `flat` (supports in order), `records`.
    """
    records: list[dict[str, Any]] = []
    session = _session(records, "mask-inactive-row-copied", model_runner=object())
    mask = mask_tensors(requests, slots=4, width=6)
    lists = mask.tolists(np.array(list(map(len, requests))))
    session.end()
    slices = [
        lists.slice_request(index, len(supports)).to_nested_list()
        for index, supports in enumerate(requests)
    ]
    return {"slices": slices, "records": records}
