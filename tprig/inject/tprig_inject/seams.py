"""The private names of vLLM that we rest on: one table, checked before it is used.

A seam that has moved is not an error by itself. It is reported with what was expected and found,
and only the evidence that rests on it becomes unknown.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Seam:
    """A callable in vLLM: where it is, and the parameters we rely on, in order."""

    module: str
    attribute: str
    """Dotted below the module: `Class.method` or `function`."""
    parameters: tuple[str, ...]

    @property
    def target(self) -> str:
        """`module:attribute`."""
        return f"{self.module}:{self.attribute}"


_GPU = "vllm.v1.worker.gpu"

SEAMS: Mapping[str, Seam] = {
    "model_runner.execute_model": Seam(
        f"{_GPU}.model_runner", "GPUModelRunner.execute_model", ("self", "scheduler_output")
    ),
    "model_runner.sample": Seam(
        f"{_GPU}.model_runner",
        "GPUModelRunner.sample",
        ("self", "hidden_states", "input_batch", "grammar_output"),
    ),
    "rejection_sampler.verify": Seam(
        f"{_GPU}.spec_decode.rejection_sampler",
        "RejectionSampler._verify",
        ("self", "logits", "draft_logits", "draft_sampled"),
    ),
    "rejection_sampler.call": Seam(
        f"{_GPU}.spec_decode.rejection_sampler",
        "RejectionSampler.__call__",
        ("self", "logits", "input_batch", "draft_logits"),
    ),
    "rejection_sampler.max_chunk_logits": Seam(
        f"{_GPU}.spec_decode.rejection_sampler", "get_max_chunk_logits", ("vocab_size",)
    ),
    "rejection_sampler.init": Seam(
        f"{_GPU}.spec_decode.rejection_sampler",
        "RejectionSampler.__init__",
        ("self", "sampler", "spec_config", "device"),
    ),
    "sampler.init": Seam(
        f"{_GPU}.sample.sampler",
        "Sampler.__init__",
        ("self", "vllm_config", "max_num_reqs", "vocab_size", "device", "req_states"),
    ),
    "request_state.init": Seam(
        f"{_GPU}.states",
        "RequestState.__init__",
        (
            *("self", "max_num_reqs", "max_model_len", "max_num_batched_tokens"),
            *("num_speculative_steps", "vocab_size", "device"),
        ),
    ),
    "sampler.sample": Seam(
        f"{_GPU}.sample.sampler", "Sampler.sample", ("self", "logits", "expanded_idx_mapping")
    ),
    "sampling_mask.from_logits": Seam(
        f"{_GPU}.sample.output",
        "SamplingMaskTensors.from_logits",
        ("logits", "cu_num_logits", "num_sampled_tokens", "max_num_kept"),
    ),
    "sampling_mask.slice_request": Seam(
        "vllm.v1.outputs", "SamplingMaskLists.slice_request", ("self", "req_idx", "num_positions")
    ),
    "async_output.get_output": Seam(f"{_GPU}.async_utils", "AsyncOutput.get_output", ("self",)),
    "logits_processor.gather": Seam(
        "vllm.model_executor.layers.logits_processor",
        "LogitsProcessor._gather_logits",
        ("self", "logits"),
    ),
}


class SeamMovedError(RuntimeError):
    """A seam does not look as expected."""


@dataclass(frozen=True)
class Found:
    """A seam as it is in the installed vLLM."""

    seam: Seam
    owner: Any
    """The class or module that holds the callable; None when there is none."""
    found: str
    """The signature found, or why there is none."""
    ok: bool


def with_overrides(overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Seam]:
    """The table with new shapes declared for some seams.

    Args:
        overrides: seam name -> any of `module`, `attribute`, `parameters`.

    Raises:
        SeamMovedError: for a name that is not in the table.
    """
    table = dict(SEAMS)
    for name, changes in overrides.items():
        if name not in table:
            known = ", ".join(sorted(table))
            raise SeamMovedError(f"unknown seam {name!r}: expected one of {known}")
        seam = table[name]
        table[name] = Seam(
            changes.get("module", seam.module),
            changes.get("attribute", seam.attribute),
            tuple(changes.get("parameters", seam.parameters)),
        )
    return table


def locate(seam: Seam) -> Found:
    """Look a seam up in the installed vLLM; never raises for a seam that has moved."""
    try:
        owner: Any = importlib.import_module(seam.module)
    except Exception as error:  # noqa: BLE001 - a module under test may fail in any way
        return Found(seam, None, f"{type(error).__name__}: {error}", ok=False)
    *path, name = seam.attribute.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    raw = getattr(owner, name, None) if owner is not None else None
    if raw is None:
        return Found(seam, None, f"no {seam.attribute} in {seam.module}", ok=False)
    return _compare(seam, owner, raw)


def _compare(seam: Seam, owner: Any, raw: Any) -> Found:
    try:
        names = tuple(inspect.signature(raw).parameters)
    except (TypeError, ValueError) as error:
        return Found(seam, owner, f"no signature: {error}", ok=False)
    ok = names[: len(seam.parameters)] == seam.parameters
    return Found(seam, owner, f"({', '.join(names)})", ok=ok)


def standing(table: Mapping[str, Seam]) -> dict[str, Any]:
    """What stands at each seam that looks as expected: a function, classmethod or staticmethod."""
    located = {name: locate(seam) for name, seam in table.items()}
    return {
        name: inspect.getattr_static(found.owner, found.seam.attribute.rpartition(".")[2])
        for name, found in located.items()
        if found.ok
    }


def report(table: Mapping[str, Seam]) -> list[dict[str, Any]]:
    """One `seam` record per seam, as the evidence schema has it."""
    records = []
    for name, seam in sorted(table.items()):
        found = locate(seam)
        expected = f"({', '.join(seam.parameters)}, ...)"
        records.append(
            {
                "type": "seam",
                "name": name,
                "target": seam.target,
                "expected": expected,
                "found": found.found,
                "ok": found.ok,
            }
        )
    return records
