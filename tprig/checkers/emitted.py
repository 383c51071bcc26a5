"""A run's outputs, put together per request: every emitted row with where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tprig.evidence import Emission, Finding, Location, Refusal, Row
from tprig.history import FIRST_RECORD_LINE, RunHistory, Stream


@dataclass(frozen=True, slots=True)
class EmittedRow:
    """One emitted token."""

    request: str
    position: int
    """Among the request's output tokens, as the emission says."""
    step: int
    line: int
    row: Row
    support: list[int] | None
    """None without supports, and where their number shows that rows and supports do not pair."""


@dataclass
class Emitted:
    """All that one run emitted for one request."""

    request: str
    line: int = FIRST_RECORD_LINE
    """Of the last emission."""
    rows: list[EmittedRow] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    misplaced: list[tuple[int, int, int]] = field(default_factory=list)
    """Emissions that do not follow the rows before them: line, expected first row, found."""

    @property
    def length(self) -> int:
        """How many tokens the request had emitted when the last of these rows came."""
        return self.rows[-1].position + 1 if self.rows else 0


def whole(stream: Stream[object] | None) -> bool:
    """True for a stream that is there from its first record to its last."""
    return stream is not None and stream.complete and not stream.dropped


def ended(run: RunHistory) -> bool:
    """True when nothing more can be expected of the run's outputs."""
    return run.run is not None and run.run.complete and whole(run.outputs)


def records(run: RunHistory) -> Iterator[tuple[int, Emission | Refusal]]:
    """The records of the outputs with their lines; none when there is no stream."""
    if run.outputs is not None:
        yield from enumerate(run.outputs.records, FIRST_RECORD_LINE)


def refusals(run: RunHistory) -> dict[str, tuple[int, Refusal]]:
    """Refused requests with the line of each refusal."""
    return {r.request: (line, r) for line, r in records(run) if isinstance(r, Refusal)}


def emitted(run: RunHistory) -> dict[str, Emitted]:
    """The run's rows by request, in the order of the stream."""
    requests: dict[str, Emitted] = {}
    for line, record in records(run):
        if isinstance(record, Emission):
            request = requests.setdefault(record.request, Emitted(record.request))
            _add(request, line, record)
    return requests


def _add(request: Emitted, line: int, emission: Emission) -> None:
    if emission.first != request.length:
        request.misplaced.append((line, request.length, emission.first))
    request.line = line
    request.finish_reason = emission.finish_reason
    request.stop_reason = emission.stop_reason
    supports: Sequence[list[int] | None] = emission.supports or ()
    if len(supports) != len(emission.rows):
        supports = [None] * len(emission.rows)
    for index, (row, support) in enumerate(zip(emission.rows, supports, strict=True)):
        position = emission.first + index
        request.rows.append(
            EmittedRow(emission.request, position, emission.step, line, row, support)
        )


def place(
    run: RunHistory, line: int, request: str, row: int | None = None, step: int | None = None
) -> Location:
    """Where something stands in the outputs of a run."""
    path = run.outputs.path if run.outputs is not None else f"runs/{run.id}/outputs.jsonl"
    return Location(file=path, line=line, run=run.id, request=request, row=row, step=step)


def where(run: RunHistory, row: EmittedRow) -> Location:
    """Where a row stands in the outputs of its run."""
    return place(run, row.line, row.request, row.position, row.step)


def misplacements(run: RunHistory, requests: Mapping[str, Emitted]) -> list[Finding]:
    """Emissions that leave a gap or say rows again; certain only when no record was dropped."""
    if run.outputs is None or run.outputs.dropped:
        return []
    return [
        Finding(
            anomaly="output.tokens",
            message=f"expected the emission to begin at row {expected}, found row {found}: "
            f"emissions of a request follow each other without gap or repetition",
            where=place(run, line, request.request, expected),
        )
        for request in requests.values()
        for line, expected, found in request.misplaced
    ]
