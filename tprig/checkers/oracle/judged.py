"""What the reference, and the supports themselves, say of a call and of its replays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tprig.checkers.oracle import convert
from tprig.checkers.reference import (
    Discrepancy,
    Judgement,
    MalformedCallError,
    Subject,
    TieRule,
    judge_call,
)
from tprig.checkers.wording import difference
from tprig.evidence import Finding, Location
from tprig.history import Arrays, CallHistory

ANOMALIES: Mapping[Subject, str] = {
    Subject.TOKENS: "oracle.tokens",
    Subject.DECISIONS: "oracle.decisions",
    Subject.COUNTS: "oracle.counts",
    Subject.LOGPROBS: "oracle.logprobs",
    Subject.RANKS: "oracle.ranks",
    Subject.SUPPORT: "oracle.reconstruction",
    Subject.PROCESSED: "oracle.reconstruction",
}
SUM_TOLERANCE = 1e-4
"""How far the probabilities of a support, float32 each, may sum from one."""


@dataclass
class Outcome:
    """What was found in one call's results."""

    findings: list[Finding] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    ambiguous: int = 0
    """Comparisons that float32 leaves open."""
    drifted: list[str] = field(default_factory=list)
    """Decisions that another kind of device makes otherwise, within tolerance."""


def production(call: CallHistory, where: Location) -> Outcome:
    """Judge what production returned against the reference."""
    tensors = call.tensors()
    try:
        judgement = judged(call, tensors, tensors, convert.TIES[call.call.flags.top_k_ties])
    except MalformedCallError as error:
        message = f"expected a call that can be judged, found {error}"
        return Outcome([Finding(anomaly="oracle.record", message=message, where=where)])
    return Outcome(
        findings=[_finding(each, call, where) for each in judgement.failures],
        undecided=list(judgement.undecided),
        ambiguous=sum(judgement.ambiguous.values()),
    )


def judged(call: CallHistory, inputs: Arrays, outputs: Arrays, rule: TieRule) -> Judgement:
    """What the reference says of outputs that a backend with this tie rule returned.

    Raises:
        MalformedCallError: the outputs contradict themselves or the call.
    """
    read = convert.sampler_call(call.call, inputs, replay="mask_counts" in outputs)
    return judge_call(replace(read, tie_rule=rule), convert.sampler_result(call.call, outputs))


def _finding(each: Discrepancy, call: CallHistory, where: Location) -> Finding:
    margin = "" if each.margin is None else f", off by {each.margin:.3g}"
    request = call.call.requests[each.request]
    return Finding(
        anomaly=ANOMALIES[each.what],
        message=f"expected {each.expected} by the reference ({each.what.value} of row {each.row}), "
        f"found {each.found}{margin}",
        where=at(where, request),
    )


def at(where: Location, request: str) -> Location:
    """The same place, of one request."""
    return Location(
        file=where.file,
        line=where.line,
        run=where.run,
        request=request,
        step=where.step,
        rank=where.rank,
    )


# --- supports ---------------------------------------------------------------------------------


def supports(call: CallHistory, outputs: Arrays, where: Location) -> Iterator[Finding]:
    """Check each support against the processed logits of its row and the token it supports."""
    held = convert.widened(call.call, outputs)
    listed = convert.supports(held, call.call.flags.vocab_size)
    if listed is None or "processed_logits" not in held:
        return
    finite = np.isfinite(held["processed_logits"])
    bounds = call.tensors()["cu_num_logits"]
    ends = np.cumsum(held["num_verified"])
    for i, mine in enumerate(listed):
        first = int(ends[i]) - len(mine)
        rows = range(int(bounds[i]), int(bounds[i]) + len(mine))
        for slot, (support, row) in enumerate(zip(mine, rows, strict=True)):
            token = int(held["sampled"][first + slot])
            found = _support_fault(support, finite, row, token, held)
            if found is not None:
                anomaly, message = found
                text = f"{message} (row {row}, slot {slot})"
                yield Finding(anomaly=anomaly, message=text, where=at(where, call.call.requests[i]))


def _support_fault(
    support: NDArray[np.int64],
    finite: NDArray[np.bool_],
    row: int,
    token: int,
    held: Mapping[str, NDArray[Any]],
) -> tuple[str, str] | None:
    expected = np.flatnonzero(finite[row])
    if not np.array_equal(support, expected):
        others = [r for r in range(len(finite)) if np.array_equal(support, finite[r].nonzero()[0])]
        told = f"expected the support of row {row}, found that it "
        if others:
            return "mask.row-alignment", f"{told}is that of row {others[0]}"
        return "mask.support-alignment", told + difference(expected.tolist(), support.tolist())
    if token not in support:
        return "mask.membership", f"expected a member of the support, found token {token}"
    logits = held["processed_logits"][row, support].astype(np.float64)
    logprobs = logits - logits.max()
    total = float(np.log(np.exp(logprobs).sum()))
    own = float(logprobs[np.searchsorted(support, token)]) - total
    told_logprob = _told(held, row)
    if told_logprob is not None and not abs(own - told_logprob) <= SUM_TOLERANCE:
        return (
            "oracle.reconstruction",
            f"expected logprob {own:.6g} from the support's logits, found {told_logprob:.6g}",
        )
    return None


def _told(held: Mapping[str, NDArray[Any]], row: int) -> float | None:
    return float(held["logprobs"][row, 0]) if "logprobs" in held else None
