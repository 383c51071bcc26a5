"""Holds two runs of the same requests against each other: equal, row for row and bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tprig.checkers.emitted import Emitted, emitted, ended, place, refusals, where
from tprig.checkers.wording import counted, difference
from tprig.evidence import Finding, Finite, Number, Row
from tprig.history import RunHistory


@dataclass(frozen=True)
class Arm:
    """One of two runs that are held against each other."""

    run: RunHistory
    requests: dict[str, Emitted]
    refused: frozenset[str]
    ended: bool
    label: str
    """What findings call it: `replay on`, `the candidate`."""

    @staticmethod
    def of(run: RunHistory, label: str) -> Arm:
        """The arm of a run."""
        return Arm(run, emitted(run), frozenset(refusals(run)), ended(run), label)

    def has_ended(self, request: str) -> bool:
        """True when it is certain that the run emits no further row for the request."""
        found = self.requests.get(request)
        finished = found is not None and found.finish_reason is not None
        return finished or self.ended or request in self.refused

    def end(self, request: str) -> str:
        """How the request ended here, in words."""
        if request in self.refused:
            return "refused"
        found = self.requests.get(request)
        return "no end" if found is None or found.finish_reason is None else _finish(found)


def _finish(request: Emitted) -> str:
    reason = "" if request.stop_reason is None else f" ({request.stop_reason})"
    return f"{request.finish_reason}{reason}"


def compare(request: str, off: Arm, on: Arm) -> tuple[int, list[Finding]]:
    """Compare one request; returns the rows judged and a finding per anomaly at most.

    Args:
        request: its id.
        off: what is expected.
        on: what is judged.
    """
    ours, theirs = (arm.requests.get(request, Emitted(request)) for arm in (on, off))
    others = {row.position: row for row in theirs.rows}
    pair = _Pair(off.label, on.label)
    first: dict[str, Finding] = {}
    judged = 0
    for row in ours.rows:
        other = others.get(row.position)
        if other is None:
            continue
        judged += 1
        for anomaly, message in pair.differences(other.row, row.row):
            finding = Finding(anomaly=anomaly, message=message, where=where(on.run, row))
            first.setdefault(anomaly, finding)
        if "output.tokens" in first:
            return judged, list(first.values())
    end = _compare_ends(request, off, on)
    return judged, [*first.values(), *end]


@dataclass(frozen=True)
class _Pair:
    """How two rows differ, in words."""

    off: str
    on: str

    def differences(self, off: Row, on: Row) -> Iterator[tuple[str, str]]:
        """Anomaly and message of each."""
        if off == on:
            return
        if off.token_id != on.token_id:
            yield "output.tokens", self._told("token", off.token_id, on.token_id)
            return
        if off.logprob != on.logprob:
            yield (
                "output.logprobs",
                self._told(f"logprob of token {on.token_id}", off.logprob, on.logprob),
            )
        elif (unlike := self._finite(off.finite, on.finite)) is not None:
            yield "output.logprobs", unlike
        if off.rank != on.rank:
            yield "output.ranks", self._told(f"rank of token {on.token_id}", off.rank, on.rank)

    def _told(self, what: str, off: object, on: object) -> str:
        return f"expected the {what} to be {off!r} as with {self.off}, found {on!r} with {self.on}"

    def _finite(self, off: Finite | None, on: Finite | None) -> str | None:
        """How the finite tokens and their logprobs differ; the order of ties does not count."""
        if off is None or on is None:
            return None if off is on else self._told("finite set", off and "there", on and "there")
        expected, found = _logprobs(off), _logprobs(on)
        if expected.keys() != found.keys():
            return (
                f"expected the finite tokens of {self.off}, found with {self.on} a set that "
                f"{difference(expected, found)}"
            )
        for token, logprob in expected.items():
            if found[token] != logprob:
                return self._told(f"logprob of token {token}", logprob, found[token])
        if off.complete != on.complete:
            return self._told("completeness of the finite set", off.complete, on.complete)
        return None


def _logprobs(finite: Finite) -> dict[int, Number]:
    return dict(zip(finite.token_ids, finite.logprobs, strict=True))


def _compare_ends(request: str, off: Arm, on: Arm) -> Iterator[Finding]:
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
            message=f"expected the {counted(theirs.length, 'row')} of {off.label} (end: "
            f"{off.end(request)}), found {counted(ours.length, 'row')} with {on.label} (end: "
            f"{on.end(request)})",
            where=place(on.run, ours.line, request, length),
        )
