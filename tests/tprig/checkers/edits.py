"""Changes to histories: what a fault, a tamperer or an interruption leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import msgspec

from tprig.evidence import Effective, Emission, Finite, RankRecord, Row, Seam, Step, Verification
from tprig.history import RunHistory, Stream

R = TypeVar("R")


def edit_stream(stream: Stream[R] | None, index: int, record: R) -> Stream[R]:
    """The stream with one record replaced."""
    assert stream is not None
    return replace(stream, records=(*stream.records[:index], record, *stream.records[index + 1 :]))


def truncated(stream: Stream[R] | None, records: int) -> Stream[R]:
    """The first records of a stream that was cut short."""
    assert stream is not None
    return replace(stream, records=stream.records[:records], complete=False)


def dropping(stream: Stream[R] | None, index: int) -> Stream[R]:
    """The stream of a writer that had to drop one record."""
    assert stream is not None
    records = (*stream.records[:index], *stream.records[index + 1 :])
    return replace(stream, records=records, dropped=1)


def incomplete(run: RunHistory) -> RunHistory:
    """A run that ended before its requests did."""
    assert run.run is not None
    return replace(run, run=msgspec.structs.replace(run.run, complete=False))


# --- outputs ------------------------------------------------------------------------------------


def emissions(run: RunHistory) -> list[tuple[int, Emission]]:
    """The run's emissions with their indices in the stream."""
    assert run.outputs is not None
    return [(i, r) for i, r in enumerate(run.outputs.records) if isinstance(r, Emission)]


def places(run: RunHistory) -> list[tuple[str, int]]:
    """Request and position of every emitted row."""
    return [
        (emission.request, emission.first + i)
        for _, emission in emissions(run)
        for i in range(len(emission.rows))
    ]


def find(run: RunHistory, request: str, position: int) -> tuple[int, Emission, int]:
    """The emission that holds a row: its index, itself, and the row's index in it."""
    for index, emission in emissions(run):
        offset = position - emission.first
        if emission.request == request and 0 <= offset < len(emission.rows):
            return index, emission, offset
    raise LookupError(f"no row {position} of request {request}")


def row_at(run: RunHistory, request: str, position: int) -> Row:
    """A row by its place."""
    _, emission, offset = find(run, request, position)
    return emission.rows[offset]


def edit_emission(run: RunHistory, index: int, **changes: object) -> RunHistory:
    """The run with fields of one emission changed."""
    assert run.outputs is not None
    changed = msgspec.structs.replace(run.outputs.records[index], **changes)
    return replace(run, outputs=edit_stream(run.outputs, index, changed))


def edit_row(run: RunHistory, request: str, position: int, **changes: object) -> RunHistory:
    """The run with fields of one row changed."""
    index, emission, offset = find(run, request, position)
    rows = list(emission.rows)
    rows[offset] = msgspec.structs.replace(rows[offset], **changes)
    return edit_emission(run, index, rows=rows)


def edit_finite(
    run: RunHistory, request: str, position: int, edit: Callable[[Finite], Finite]
) -> RunHistory:
    """The run with one row's finite set changed."""
    finite = row_at(run, request, position).finite
    assert finite is not None
    return edit_row(run, request, position, finite=edit(finite))


def support_at(run: RunHistory, request: str, position: int) -> list[int]:
    """A row's support."""
    _, emission, offset = find(run, request, position)
    assert emission.supports is not None
    return emission.supports[offset]


def edit_support(run: RunHistory, request: str, position: int, support: list[int]) -> RunHistory:
    """The run with one row's support replaced."""
    index, emission, offset = find(run, request, position)
    assert emission.supports is not None
    supports = list(emission.supports)
    supports[offset] = support
    return edit_emission(run, index, supports=supports)


def drop_row(run: RunHistory, request: str, position: int) -> RunHistory:
    """The run without one row and its support."""
    index, emission, offset = find(run, request, position)
    supports = emission.supports
    return edit_emission(
        run,
        index,
        rows=emission.rows[:offset] + emission.rows[offset + 1 :],
        supports=supports and supports[:offset] + supports[offset + 1 :],
    )


# --- ranks, steps, engines ------------------------------------------------------------------------


def edit_call(
    run: RunHistory, rank: int, record: int, request: int, **changes: object
) -> RunHistory:
    """The run with fields of one request's part in one sampling call changed."""
    verification = run.ranks[rank].records[record]
    assert isinstance(verification, Verification)
    requests = list(verification.requests)
    requests[request] = msgspec.structs.replace(requests[request], **changes)
    changed: RankRecord = msgspec.structs.replace(verification, requests=requests)
    return with_rank(run, rank, edit_stream(run.ranks[rank], record, changed))


def with_rank(run: RunHistory, rank: int, stream: Stream[RankRecord]) -> RunHistory:
    """The run with one rank's stream replaced."""
    return replace(run, ranks={**run.ranks, rank: stream})


def edit_step(run: RunHistory, index: int, **changes: object) -> RunHistory:
    """The run with fields of one step changed."""
    assert run.steps is not None
    step = run.steps.records[index]
    assert isinstance(step, Step)
    changed = msgspec.structs.replace(step, **changes)
    return replace(run, steps=edit_stream(run.steps, index, changed))


def edit_effective(run: RunHistory, **changes: object) -> RunHistory:
    """The run with fields of its engine's `effective.json` changed."""
    assert run.engine is not None
    effective: Effective | None = run.engine.effective
    assert effective is not None
    changed = msgspec.structs.replace(effective, **changes)
    return replace(run, engine=replace(run.engine, effective=changed))


def edit_config(run: RunHistory, **changes: str) -> RunHistory:
    """The run with entries of the effective configuration changed; `__` stands for a dot."""
    assert run.engine is not None
    assert run.engine.effective is not None
    entries = {name.replace("__", "."): value for name, value in changes.items()}
    return edit_effective(run, config={**run.engine.effective.config, **entries})


def with_seam(run: RunHistory, seam: Seam) -> RunHistory:
    """The run of an engine whose seam of that name is as given."""
    assert run.engine is not None
    assert run.engine.effective is not None
    others = [other for other in run.engine.effective.seams if other.name != seam.name]
    return edit_effective(run, seams=[*others, seam])


def replaced_engine(run: RunHistory, other: RunHistory) -> RunHistory:
    """The run, had the other run's engine served it."""
    return replace(run, engine=other.engine)
