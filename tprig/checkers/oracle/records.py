"""Whether stored calls are what the workers took: digests, and links to the rest of the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tprig.checkers.oracle.bounds import CallBoundsError, require_bounds
from tprig.evidence import (
    CapturedCall,
    Finding,
    Location,
    OracleCall,
    Request,
    Sampling,
    Verification,
    Verified,
)
from tprig.history import FIRST_RECORD_LINE, Arrays, CallHistory, RunHistory

RECORD = "oracle.record"
RETURNED = f"{RECORD}.returned"
ANOMALIES: Mapping[str, str] = {
    "logits": f"{RECORD}.logits",
    "draft_logits": f"{RECORD}.draft-logits",
    "input_ids": f"{RECORD}.draft-tokens",
    "cu_num_logits": f"{RECORD}.boundaries",
    "cu_num_logits_np": f"{RECORD}.boundaries",
    "positions": f"{RECORD}.positions",
    "seeds": f"{RECORD}.seeds",
}
"""Input -> the anomaly that a change of it is; `RETURNED` for every output, else `RECORD`."""
DIGEST_BYTES = 16


@dataclass(frozen=True)
class Taken:
    """A captured call as one rank's stream tells of it."""

    run: RunHistory
    rank: int
    line: int
    record: OracleCall

    def where(self, request: str | None = None, file: str | None = None) -> Location:
        """In the rank's stream, or in another file."""
        return Location(
            file=file or self.run.ranks[self.rank].path,
            line=None if file else self.line,
            run=self.run.id,
            request=request,
            step=self.record.step,
            rank=self.rank,
        )


def taken(run: RunHistory) -> list[Taken]:
    """Every record of a captured call, by rank and line."""
    return [
        Taken(run, rank, line, record)
        for rank, stream in sorted(run.ranks.items())
        for line, record in enumerate(stream.records, FIRST_RECORD_LINE)
        if isinstance(record, OracleCall)
    ]


def digest(array: NDArray[Any]) -> str:
    """BLAKE2b-128 of the bytes in C order, in hex, as workers digest tensors."""
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=DIGEST_BYTES).hexdigest()


def call_id(call: CapturedCall) -> str:
    """BLAKE2b-128 of the call's canonical JSON, in hex."""
    plain = msgspec.to_builtins(call)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def tensors_file(call: str) -> str:
    """Where a call's tensors lie."""
    return f"oracles/{call}/tensors.safetensors"


def changed(one: Taken, history: CallHistory) -> Iterator[Finding]:
    """What is no longer what the worker digested as it took it."""
    document = f"oracles/{history.id}/call.json"
    if (found := call_id(history.call)) != history.id:
        yield _finding(
            f"expected a call of digest {history.id}, by which it is named, found {found}: its "
            "flags, requests or digests were changed",
            one.where(file=document),
        )
    told = {t.name: t.digest for t in history.call.tensors}
    for name in sorted(told.keys() ^ one.record.digests.keys()):
        yield _finding(
            f"expected the tensors that the worker took, found '{name}' in one of call.json and "
            "the rank's stream alone",
            one.where(file=document),
        )
    held = history.tensors()
    for name, expected in sorted(one.record.digests.items()):
        stored = digest(held[name]) if name in held else told.get(name)
        if name in told and not expected == stored == told[name]:
            yield _finding(
                f"expected {name} of digest {expected}, as the worker took it, found {stored} in "
                f"the stored tensors and {told[name]} in call.json: it was changed",
                one.where(file=tensors_file(history.id)),
                anomaly_of(history.call, name),
            )


def anomaly_of(call: CapturedCall, name: str) -> str:
    """What it is called when a tensor, or a field of a call, is not what the worker took."""
    returned = any(t.name == name and t.role == "output" for t in call.tensors)
    return RETURNED if returned else ANOMALIES.get(name, RECORD)


def out_of_bounds(one: Taken, history: CallHistory) -> Finding | None:
    """Why the call can be neither judged nor replayed; None when it can."""
    try:
        require_bounds(history.call, history.tensors())
    except CallBoundsError as error:
        return _finding(
            f"expected a call within bounds, found {error}",
            one.where(),
            anomaly_of(history.call, error.field),
        )
    return None


def unlinked(one: Taken, history: CallHistory) -> Iterator[Finding]:
    """Where the call contradicts the rest of the run: requests, drafts, emitted tokens."""
    call, tensors = history.call, history.tensors()
    stream = one.run.ranks[one.rank]
    steps = [r for r in stream.records if isinstance(r, Verification) and r.step == one.record.step]
    for number, request in enumerate(call.requests):
        where = one.where(request)
        for verification in steps:
            theirs = [v for v in verification.requests if v.request == request]
            yield from _against_verified(tensors, number, theirs, where)
    if one.run.workload is not None:
        asked = {request.id: request for request in one.run.workload.requests}
        yield from _against_workload(call, tensors, asked, one)


def _against_verified(
    tensors: Arrays, i: int, theirs: list[Verified], where: Location
) -> Iterator[Finding]:
    if not theirs:
        yield _finding("expected a verification of the request in the same step, found none", where)
        return
    low, high = (int(b) for b in tensors["cu_num_logits"][i : i + 2])
    drafts = tensors["input_ids"][tensors["logits_indices"][low + 1 : high]].tolist()
    ends = np.cumsum(tensors["num_verified"])
    sampled = tensors["sampled"][int(ends[i]) - int(tensors["num_verified"][i]) : int(ends[i])]
    told = theirs[0]
    emitted = sampled[: tensors["num_sampled"][i]].tolist()
    for what, expected, found, anomaly in (
        ("drafts", told.draft_token_ids, drafts, ANOMALIES["input_ids"]),
        ("sampled tokens", told.sampled_token_ids, emitted, RETURNED),
        ("rejected drafts", told.rejected, int(tensors["num_rejected"][i]), RETURNED),
    ):
        if expected != found:
            text = f"expected {what} {expected}, as verified in that step, found {found}"
            yield _finding(text, where, anomaly)


def _against_workload(
    call: CapturedCall, tensors: Arrays, asked: dict[str, Request], one: Taken
) -> Iterator[Finding]:
    for i, name in enumerate(call.requests):
        if name not in asked:
            yield _finding("expected a request of the workload, found another", one.where(name))
            continue
        for field, expected in _asked(asked[name].sampling, call.flags.vocab_size).items():
            found = tensors[field][i].item()
            if expected != found:
                yield _finding(
                    f"expected {field} {expected}, as requested, found {found}",
                    one.where(name),
                    ANOMALIES.get(field, RECORD),
                )


def _asked(sampling: Sampling, vocab_size: int) -> dict[str, float | int]:
    """What the sampler must have been told, by the captured tensor's name."""
    greedy = sampling.temperature == 0
    limited = not greedy and 0 < sampling.top_k < vocab_size
    expected: dict[str, float | int] = {
        "temperature": float(np.float32(sampling.temperature)),
        "top_k": sampling.top_k if limited else vocab_size,
        "top_p": 1.0 if greedy else float(np.float32(sampling.top_p)),
        "repetition_penalty": float(np.float32(sampling.repetition_penalty)),
        "frequency_penalty": float(np.float32(sampling.frequency_penalty)),
        "presence_penalty": float(np.float32(sampling.presence_penalty)),
    }
    return expected if sampling.seed is None else expected | {"seeds": sampling.seed}


def _finding(message: str, where: Location, anomaly: str = RECORD) -> Finding:
    return Finding(anomaly=anomaly, message=message, where=where)
