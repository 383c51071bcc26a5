"""Judges what a run emitted against the same requests with replay off: equal, bit for bit.

Each request is reported once per anomaly, at the first row where it shows. Where the tokens part,
the rest of the request is a different text and is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tprig.checkers import segments
from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.emitted import (
    Emitted,
    emitted,
    ended,
    misplacements,
    place,
    records,
    refusals,
    where,
)
from tprig.checkers.wording import counted, difference
from tprig.evidence import Claim, Emission, Finding, Finite, Number, Row
from tprig.history import RunHistory


def check_outputs(claim: Claim, runs: Runs) -> Judgement:  # noqa: ARG001 - a checker's signature
    """Judge roles `off` and `on`: measured `rows` (compared)."""
    judgement = Judgement({"rows": 0})
    arms = {role: _Arm.of(runs[role]) for role in ("off", "on") if role in runs}
    for arm in arms.values():
        judgement.findings += misplacements(arm.run, arm.requests)
        judgement.findings += _contradictions(arm)
    if "off" in arms:
        judgement.findings += _supports(arms["off"].run)
    if len(arms) == 2:
        for request in arms["off"].requests | arms["on"].requests:
            rows, findings = _compare(request, arms["off"], arms["on"])
            judgement.measured["rows"] += rows
            judgement.findings += findings
    return judgement


@dataclass(frozen=True)
class _Arm:
    run: RunHistory
    requests: dict[str, Emitted]
    refused: frozenset[str]
    ended: bool

    @staticmethod
    def of(run: RunHistory) -> _Arm:
        return _Arm(run, emitted(run), frozenset(refusals(run)), ended(run))

    def has_ended(self, request: str) -> bool:
        """True when it is certain that the run emits no further row for the request."""
        found = self.requests.get(request)
        finished = found is not None and found.finish_reason is not None
        return finished or self.ended or request in self.refused

    def end(self, request: str) -> str:
        if request in self.refused:
            return "refused"
        found = self.requests.get(request)
        return "no end" if found is None or found.finish_reason is None else _finish(found)


def _finish(request: Emitted) -> str:
    reason = "" if request.stop_reason is None else f" ({request.stop_reason})"
    return f"{request.finish_reason}{reason}"


def _supports(run: RunHistory) -> Iterator[Finding]:
    for line, record in records(run):
        if isinstance(record, Emission) and record.supports is not None:
            yield Finding(
                anomaly="mask.absent",
                message=f"expected no supports, found {len(record.supports)}: replay is off",
                where=place(run, line, record.request, record.first, record.step),
            )


# --- one run: do its ranks and logprobs agree? -------------------------------------------------


def _contradictions(arm: _Arm) -> Iterator[Finding]:
    """Rows whose rank or logprob contradicts the finite logprobs beside it."""
    rows = [row for request in arm.requests.values() for row in request.rows]
    listed = [
        (row, row.row.finite, float(row.row.logprob))
        for row in rows
        if row.row.finite is not None and row.row.logprob is not None
    ]
    flat, lengths = segments.flatten([finite.logprobs for _, finite, _ in listed])
    own = np.array([logprob for _, _, logprob in listed]).repeat(lengths)
    above = segments.sums(flat > own, lengths).astype(int).tolist()
    not_below = segments.sums(flat >= own, lengths).astype(int).tolist()
    for (row, finite, logprob), low, high in zip(listed, above, not_below, strict=True):
        found = _contradicted_logprob(row.row, finite) or _contradicted_rank(
            row.row, finite, low + 1, high if logprob > float("-inf") else None
        )
        if found is not None:
            yield Finding(anomaly=found[0], message=found[1], where=where(arm.run, row))


def _contradicted_logprob(row: Row, finite: Finite) -> tuple[str, str] | None:
    if row.token_id not in finite.token_ids:
        return None
    beside = finite.logprobs[finite.token_ids.index(row.token_id)]
    if beside == row.logprob:
        return None
    return "output.logprobs", (
        f"expected one logprob of token {row.token_id}, found {row.logprob!r} as the emitted token "
        f"and {beside!r} among the finite ones"
    )


def _contradicted_rank(
    row: Row, finite: Finite, low: int, high: int | None
) -> tuple[str, str] | None:
    if row.rank is None:
        return None
    high = high if finite.complete else None
    if row.rank >= low and (high is None or row.rank <= high):
        return None
    bounds = f"at least {low}" if high is None else f"{low} to {high}"
    return "output.ranks", (
        f"expected a rank of {bounds} for token {row.token_id}, found {row.rank}: a rank counts "
        f"the tokens of the row with a processed logit at least as high"
    )


# --- two runs -----------------------------------------------------------------------------------


def _compare(request: str, off: _Arm, on: _Arm) -> tuple[int, list[Finding]]:
    """Compare one request; returns the rows judged and a finding per anomaly at most."""
    ours, theirs = (arm.requests.get(request, Emitted(request)) for arm in (on, off))
    others = {row.position: row for row in theirs.rows}
    first: dict[str, Finding] = {}
    judged = 0
    for row in ours.rows:
        other = others.get(row.position)
        if other is None:
            continue
        judged += 1
        for anomaly, message in _differences(other.row, row.row):
            finding = Finding(anomaly=anomaly, message=message, where=where(on.run, row))
            first.setdefault(anomaly, finding)
        if "output.tokens" in first:
            return judged, list(first.values())
    end = _compare_ends(request, off, on)
    return judged, [*first.values(), *end]


def _differences(off: Row, on: Row) -> Iterator[tuple[str, str]]:
    if off == on:
        return
    if off.token_id != on.token_id:
        yield "output.tokens", _off_on("token", off.token_id, on.token_id)
        return
    if off.logprob != on.logprob:
        yield (
            "output.logprobs",
            _off_on(f"logprob of token {on.token_id}", off.logprob, on.logprob),
        )
    elif (difference := _finite_difference(off.finite, on.finite)) is not None:
        yield "output.logprobs", difference
    if off.rank != on.rank:
        yield "output.ranks", _off_on(f"rank of token {on.token_id}", off.rank, on.rank)


def _off_on(what: str, off: object, on: object) -> str:
    return f"expected the {what} to be {off!r} as with replay off, found {on!r} with replay on"


def _finite_difference(off: Finite | None, on: Finite | None) -> str | None:
    """How the finite tokens and their logprobs differ; the order of ties does not count."""
    if off is None or on is None:
        return None if off is on else _off_on("finite set", off and "there", on and "there")
    expected, found = _logprobs(off), _logprobs(on)
    if expected.keys() != found.keys():
        return (
            f"expected the finite tokens of replay off, found with replay on a set that "
            f"{difference(expected, found)}"
        )
    for token, logprob in expected.items():
        if found[token] != logprob:
            return _off_on(f"logprob of token {token}", logprob, found[token])
    if off.complete != on.complete:
        return _off_on("completeness of the finite set", off.complete, on.complete)
    return None


def _logprobs(finite: Finite) -> dict[int, Number]:
    return dict(zip(finite.token_ids, finite.logprobs, strict=True))


def _compare_ends(request: str, off: _Arm, on: _Arm) -> Iterator[Finding]:
    """A request that certainly ended in one run must not go on, or end otherwise, in the other."""
    ours, theirs = (arm.requests.get(request, Emitted(request)) for arm in (on, off))
    length = min(ours.length, theirs.length)
    if ours.length == theirs.length:
        certain = on.has_ended(request) and off.has_ended(request)
        differ = on.end(request) != off.end(request)
    else:
        shorter = off if theirs.length == length else on
        certain, differ = shorter.has_ended(request), True
    if certain and differ:
        yield Finding(
            anomaly="output.tokens",
            message=f"expected the {counted(theirs.length, 'row')} of replay off (end: "
            f"{off.end(request)}), found {counted(ours.length, 'row')} with replay on (end: "
            f"{on.end(request)})",
            where=place(on.run, ours.line, request, length),
        )


OUTPUTS = Checker(
    name="outputs",
    roles=("off", "on"),
    needs=("run", "outputs"),
    seams=(),
    function=check_outputs,
)
