"""One rank's stream, and what was found in its shared memory, as arrays that can be compared."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tprig.checkers.collectives.alphabet import STEP, UNTOLD, Alphabet, Ints
from tprig.evidence import (
    Calls,
    Coverage,
    Decision,
    ForensicRecord,
    GraphTemplate,
    Location,
    Operation,
    RankRecord,
    Ring,
    StageDigest,
)
from tprig.history import FIRST_RECORD_LINE, RunHistory, Stream

Times = npt.NDArray[np.int64]
PENDING = -1
"""Stands for the time at which a call was left that never was."""


@dataclass(frozen=True)
class Track:
    """What one rank did."""

    run: str
    rank: int
    path: str
    first: int
    """Sequence number of the first call that is known."""
    signatures: Ints
    """[calls]"""
    enter_ns: Times
    """[calls]"""
    leave_ns: Times
    """[calls]; `PENDING` for those that were never left."""
    decisions: tuple[tuple[int, Decision], ...]
    """With their lines."""
    values: tuple[tuple[int, StageDigest], ...]
    templates: tuple[tuple[int, GraphTemplate, tuple[int, ...]], ...]
    """With their lines, and the numbers of their operations."""
    coverage: tuple[tuple[int, Coverage], ...]
    lost: tuple[str, ...]
    """What is known to be missing in between."""
    sound: int
    """How many calls come before the first loss: only those can be compared with another rank's."""
    ended: bool
    """True when the stream was closed in order: nothing comes after it."""
    chunks: tuple[tuple[int, int], ...] = ()
    """(index of the first call, line) of each record of calls."""
    starts: tuple[tuple[int, int], ...] = ()
    """(index of the next call, step) where each model step begins."""

    def __len__(self) -> int:
        return len(self.signatures)

    def step(self, call: int) -> int | None:
        """The model step in which a call was made; None before the first."""
        place = bisect_right(self.starts, call, key=lambda start: start[0])
        return self.starts[place - 1][1] if place else None

    def where(self, call: int | None, step: int | None = None) -> Location:
        """Where a call is told of; None is the end of the stream."""
        place = len(self) if call is None else call
        chunk = bisect_right(self.chunks, place, key=lambda chunk: chunk[0])
        return Location(
            file=self.path,
            line=self.chunks[max(chunk - 1, 0)][1] if self.chunks else None,
            run=self.run,
            step=self.step(place) if step is None else step,
            rank=self.rank,
        )


@dataclass(frozen=True)
class Sequence:
    """What a rank issued within a group of ranks, in order, with `STEP` where a step begins."""

    track: Track
    signatures: Ints
    """[calls and steps]"""
    calls: Times
    """[calls and steps]: which call of the track each of them is; for a step, the next one."""

    def __len__(self) -> int:
        return len(self.signatures)

    def call(self, place: int) -> int | None:
        """The call of the track at a place of the sequence; None at its end."""
        return int(self.calls[place]) if place < len(self.calls) else None

    def step(self, place: int) -> int | None:
        """The step that has begun at a place of the sequence; None before the first."""
        begun = int((self.signatures[:place] == STEP).sum())
        return self.track.starts[begun - 1][1] if begun else None


def sequence(track: Track, wanted: npt.NDArray[np.bool_]) -> Sequence:
    """The calls whose signatures are wanted, with the steps among them.

    Args:
        track: one rank's.
        wanted: [signatures + 1].
    """
    calls = np.flatnonzero(wanted[track.signatures[: track.sound]])
    known = (call for call, _ in track.starts if call < track.sound or not track.lost)
    starts = np.fromiter(known, dtype=np.int64)
    places = np.searchsorted(calls, starts)
    return Sequence(
        track,
        np.insert(track.signatures[calls], places, STEP).astype(np.int32),
        np.insert(calls, places, starts),
    )


def tracks(run: RunHistory, alphabet: Alphabet) -> dict[int, Track]:
    """The tracks of all ranks of a run, in order."""
    forensics = () if run.forensics is None else run.forensics.records
    return {
        rank: track(run.id, rank, stream, forensics, alphabet)
        for rank, stream in sorted(run.ranks.items())
    }


def track(
    run: str,
    rank: int,
    stream: Stream[RankRecord],
    forensics: Iterable[ForensicRecord],
    alphabet: Alphabet,
) -> Track:
    """The track of one rank: its stream, continued by what its ring held."""
    builder = _Builder(alphabet)
    for line, record in enumerate(stream.records, FIRST_RECORD_LINE):
        builder.take(line, record)
    for ring in forensics:
        if isinstance(ring, Ring) and ring.rank == rank:
            builder.continue_with(ring)
    return builder.track(run, rank, stream)


@dataclass
class _Builder:
    alphabet: Alphabet
    numbers: dict[int, int] = field(default_factory=dict)
    operations: list[int] = field(default_factory=list)
    enter_ns: list[int] = field(default_factory=list)
    leave_ns: list[int] = field(default_factory=list)
    first: int | None = None
    decisions: list[tuple[int, Decision]] = field(default_factory=list)
    values: list[tuple[int, StageDigest]] = field(default_factory=list)
    templates: list[tuple[int, GraphTemplate, tuple[int, ...]]] = field(default_factory=list)
    coverage: list[tuple[int, Coverage]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    sound: int | None = None
    chunks: list[tuple[int, int]] = field(default_factory=list)

    def take(self, line: int, record: RankRecord) -> None:
        if isinstance(record, Calls):
            self._calls(line, record)
        elif isinstance(record, Decision):
            self.decisions.append((line, record))
        elif isinstance(record, StageDigest):
            self.values.append((line, record))
        elif isinstance(record, Operation):
            self.numbers[record.id] = self.alphabet.number(record)
        elif isinstance(record, GraphTemplate):
            self.templates.append((line, record, tuple(map(self._number, record.operations))))
        elif isinstance(record, Coverage):
            self.coverage.append((line, record))

    def _calls(self, line: int, record: Calls) -> None:
        self.chunks.append((len(self.operations), line))
        self._append(record.first, record.operations, record.enter_ns, record.leave_ns)

    def _number(self, operation: int) -> int:
        return self.numbers.get(operation, UNTOLD)

    def continue_with(self, ring: Ring) -> None:
        """Append the calls of a ring that the stream lacks."""
        known = (self.first or 0) + len(self.operations) - ring.first
        if known > len(ring.operations):
            return
        skip = max(known, 0)
        left = [PENDING if at is None else at for at in ring.leave_ns[skip:]]
        self._append(ring.first + skip, ring.operations[skip:], ring.enter_ns[skip:], left)

    def _append(
        self, first: int, operations: list[int], enter_ns: list[int], leave_ns: list[int]
    ) -> None:
        if not operations:
            return
        if self.first is None:
            self.first = first
            if first:
                self._lose(f"the first {first} calls")
        elif first != self.first + len(self.operations):
            self._lose(f"calls {self.first + len(self.operations)} to {first - 1}")
        self.operations += operations
        # Where nobody looked at a clock, the calls had ended all the same.
        self.enter_ns += enter_ns or [0] * len(operations)
        self.leave_ns += leave_ns or [0] * len(operations)

    def _signatures(self) -> Ints:
        """Of all calls, [calls]."""
        operations = np.array(self.operations, dtype=np.int64)
        ids = np.fromiter(self.numbers, dtype=np.int64, count=len(self.numbers))
        order = np.argsort(ids)
        numbers = np.fromiter(self.numbers.values(), dtype=np.int32, count=len(self.numbers))
        if not len(ids) or not len(operations):
            return np.full(len(operations), UNTOLD, dtype=np.int32)
        # Ids are those of the stream, which need not be dense where it is hostile.
        places = np.minimum(np.searchsorted(ids[order], operations), len(ids) - 1)
        known = ids[order][places] == operations
        return np.where(known, numbers[order][places], UNTOLD).astype(np.int32)

    def _lose(self, what: str) -> None:
        self.lost.append(what)
        self.sound = len(self.operations) if self.sound is None else self.sound

    def track(self, run: str, rank: int, stream: Stream[RankRecord]) -> Track:
        first = self.first or 0
        if stream.dropped:
            # Any of them may be one on which all others rest.
            self.lost.append(f"{stream.dropped} records that its writer dropped")
            self.sound, self.decisions, self.values = 0, [], []
        starts = [(d.at - first, d.step) for _, d in self.decisions if d.kind == "schedule"]
        return Track(
            run=run,
            rank=rank,
            path=stream.path,
            first=first,
            signatures=self._signatures(),
            enter_ns=np.array(self.enter_ns, dtype=np.int64),
            leave_ns=np.array(self.leave_ns, dtype=np.int64),
            decisions=tuple(self.decisions),
            values=tuple(self.values),
            templates=tuple(self.templates),
            coverage=tuple(self.coverage),
            lost=tuple(self.lost),
            sound=len(self.operations) if self.sound is None else self.sound,
            ended=stream.complete,
            chunks=tuple(self.chunks),
            # A hostile stream may tell them out of order; where they stand must not depend on it.
            starts=tuple(sorted((max(at, 0), step) for at, step in starts)),
        )
