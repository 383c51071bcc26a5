"""What each rank issued around the place where the ranks of a run part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tprig import evidence
from tprig.history import RunHistory, Stream

BEFORE, AFTER = 8, 8
"""Calls shown around the first difference."""


@dataclass(frozen=True)
class DrawnCall:
    """One call of one rank.

    Attributes:
        column: its place in the picture.
        label: what is written in its box.
        title: its whole signature, and when it was entered.
        apart: the ranks do not all issue this here.
    """

    column: int
    label: str
    title: str
    apart: bool


@dataclass(frozen=True)
class Lane:
    """One rank."""

    rank: int
    calls: tuple[DrawnCall, ...]


@dataclass(frozen=True)
class Timeline:
    """The picture.

    Attributes:
        run: its id.
        first: ordinal of the leftmost call among the layer's calls of each rank.
        differs: the ranks part within it.
    """

    run: str
    layer: str
    first: int
    columns: int
    lanes: tuple[Lane, ...]
    differs: bool


@dataclass(frozen=True)
class _Call:
    signature: tuple[object, ...]
    label: str
    enter_ns: int | None


def timeline(run: RunHistory, layer: str = "semantic") -> Timeline | None:
    """Draw the calls of one layer around the first place where ranks differ, else the last ones.

    None where no rank recorded any.
    """
    calls = {rank: _calls(stream, layer) for rank, stream in sorted(run.ranks.items())}
    longest = max(map(len, calls.values()), default=0)
    if longest == 0:
        return None
    apart = _first_difference(list(calls.values()))
    middle = longest if apart is None else apart
    first, last = max(0, middle - BEFORE), min(longest, middle + AFTER)
    lanes = tuple(
        Lane(
            rank,
            tuple(
                _drawn(calls, rank, place, first) for place in range(first, min(last, len(mine)))
            ),
        )
        for rank, mine in calls.items()
    )
    return Timeline(run.id, layer, first, last - first, lanes, apart is not None)


def _calls(stream: Stream[evidence.RankRecord], layer: str) -> list[_Call]:
    operations: dict[int, evidence.Operation] = {}
    found: list[_Call] = []
    for record in stream.records:
        if isinstance(record, evidence.Operation):
            operations[record.id] = record
        elif isinstance(record, evidence.Calls):
            for index, number in enumerate(record.operations):
                operation = operations.get(number)
                if operation is not None and operation.layer == layer:
                    enter_ns = record.enter_ns[index] if record.enter_ns else None
                    found.append(_Call(_signature(operation), _label(operation), enter_ns))
    return found


def _signature(operation: evidence.Operation) -> tuple[object, ...]:
    shape = tuple(operation.shape or ())
    return (operation.kind, operation.group, shape, operation.dtype, operation.root)


def _label(operation: evidence.Operation) -> str:
    shape = "x".join(map(str, operation.shape or ()))
    return f"{operation.kind} {shape}".strip()


def _first_difference(calls: Sequence[Sequence[_Call]]) -> int | None:
    for place in range(max(map(len, calls))):
        if len({_at(mine, place) for mine in calls}) > 1:
            return place
    return None


def _at(calls: Sequence[_Call], place: int) -> tuple[object, ...] | None:
    return calls[place].signature if place < len(calls) else None


def _drawn(calls: dict[int, list[_Call]], rank: int, place: int, first: int) -> DrawnCall:
    mine = calls[rank][place]
    when = "" if mine.enter_ns is None else f", entered at {mine.enter_ns} ns"
    title = f"call {place}: {' '.join(map(str, mine.signature))}{when}"
    apart = len({_at(other, place) for other in calls.values()}) > 1
    return DrawnCall(place - first, mine.label, title, apart)
