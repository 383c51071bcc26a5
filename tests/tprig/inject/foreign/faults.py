"""Plants faults in vLLM's own callables and lets them strike."""

from __future__ import annotations

from typing import Any

import numpy as np
from tprig_inject.hooks import Hooks
from tprig_inject.session import Session
from vllm.v1.outputs import SamplingMaskLists
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

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
