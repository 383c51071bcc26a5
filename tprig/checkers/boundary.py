"""Where two runs part that nothing should tell apart: the first stage, step, rank and request.

Workers digest the tensors at the stages of a model step, in the order in which they are computed.
The first digest that differs is where the runs parted; everything after it may follow from it.
Which request it was, the digests of the tensor's rows say, with the batch that the worker recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tprig.checkers.emitted import whole
from tprig.checkers.pairs import Arm, compare
from tprig.evidence import Location, RankRecord, StageDigest, Verification, Verified
from tprig.history import FIRST_RECORD_LINE, RunHistory, Stream

_HIDDEN = ("embedding", "layer.")
"""Stages with a row for each token of the batch."""
_LOGITS = ("local_logits", "gathered_logits")
"""Stages that the target passes first in a step, and then the drafter."""
_PER_SAMPLE = "processed_logits"
"""A row for each logits row, in one part or several."""

Key = tuple[int, str, int]
"""Step, stage, ordinal."""


@dataclass(frozen=True)
class Divergence:
    """The first place at which the second of two runs is not as the first one."""

    stage: str
    """A stage's name, with `drafter` before it where that is meant, or `output`."""
    step: int | None
    rank: int | None
    request: str | None
    where: Location
    """In the second run."""
    detail: str

    def __str__(self) -> str:
        parts = [f"stage {self.stage}"]
        parts += [f"step {self.step}"] if self.step is not None else []
        parts += [f"rank {self.rank}"] if self.rank is not None else []
        parts += [f"request {self.request}"] if self.request is not None else []
        return f"{', '.join(parts)}: {self.detail}"


def digests_compared(first: RunHistory, second: RunHistory) -> int:
    """How many digests both runs have of the same rank, step, stage and ordinal."""
    return sum(
        len(_keyed(first.ranks[rank]).keys() & _keyed(second.ranks[rank]).keys())
        for rank in first.ranks.keys() & second.ranks.keys()
    )


def divergence(first: RunHistory, second: RunHistory) -> Divergence | None:
    """Where the runs part first; None when nothing that was recorded of them differs."""
    found = [
        parted
        for rank in sorted(first.ranks.keys() & second.ranks.keys())
        if (parted := _of_rank(rank, first, second)) is not None
    ]
    if found:
        return min(found, key=lambda place_and_divergence: place_and_divergence[0])[1]
    return _of_outputs(first, second)


def _keyed(stream: Stream[RankRecord]) -> dict[Key, tuple[int, StageDigest]]:
    """The digests of a stream with their lines, in the order in which they were taken."""
    return {
        (record.step, record.stage, record.ordinal): (line, record)
        for line, record in enumerate(stream.records, FIRST_RECORD_LINE)
        if isinstance(record, StageDigest)
    }


def _of_rank(
    rank: int, first: RunHistory, second: RunHistory
) -> tuple[tuple[int, int, int], Divergence] | None:
    """The first divergence on one rank, and its place among those of all ranks."""
    ours, theirs = _keyed(first.ranks[rank]), _keyed(second.ranks[rank])
    for place, (key, line, detail) in enumerate(_differences(ours, theirs, second.ranks[rank])):
        step, stage, ordinal = key
        drafted = stage in _LOGITS and ordinal > 0
        before = list(ours).index(key) if key in ours else len(ours)
        return (step, before + place, rank), Divergence(
            stage=f"drafter {stage}" if drafted else stage,
            step=step,
            rank=rank,
            request=_request(first, second, rank, key),
            where=Location(file=second.ranks[rank].path, line=line, run=second.id, step=step),
            detail=detail,
        )
    return None


def _differences(
    ours: dict[Key, tuple[int, StageDigest]],
    theirs: dict[Key, tuple[int, StageDigest]],
    stream: Stream[RankRecord],
) -> Iterator[tuple[Key, int, str]]:
    """Key, line in the second run, and what differs, in the order of the first run."""
    for key, (_, a) in ours.items():
        if key not in theirs:
            if whole(stream):
                yield key, FIRST_RECORD_LINE, f"expected a {a.dtype} of shape {a.shape}, found none"
            continue
        line, b = theirs[key]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            yield (
                key,
                line,
                f"expected a {a.dtype} of shape {a.shape}, found a {b.dtype} of shape {b.shape}",
            )
        elif a.digest != b.digest:
            rows = [i for i, (x, y) in enumerate(zip(a.rows, b.rows, strict=False)) if x != y]
            at = f" in {len(rows)} of {len(a.rows)} rows, first in row {rows[0]}" if rows else ""
            yield key, line, f"expected digest {a.digest}, found {b.digest}{at}"


def _request(first: RunHistory, second: RunHistory, rank: int, key: Key) -> str | None:
    """Whose row differs first, as far as rows and batches are on record."""
    streams = first.ranks[rank], second.ranks[rank]
    mine, other = (_batch(stream, key[0]) for stream in streams)
    if mine is None:
        return None
    ours, theirs = (_keyed(stream).get(key) for stream in streams)
    if ours is not None and theirs is not None:
        rows = zip(ours[1].rows, theirs[1].rows, strict=False)
        row = next((i for i, (x, y) in enumerate(rows) if x != y), None)
        if row is not None:
            return _owner(mine, key, row, len(ours[1].rows), _earlier(streams[0], key))
    pairs = zip(mine, other or (), strict=False)
    return next((a.request for a, b in pairs if a != b), None)


def _batch(stream: Stream[RankRecord], step: int) -> Sequence[Verified] | None:
    """The requests of a step in the order of the batch."""
    return next(
        (r.requests for r in stream.records if isinstance(r, Verification) and r.step == step),
        None,
    )


def _earlier(stream: Stream[RankRecord], key: Key) -> int:
    """Rows of the parts of this stage that came before in the step."""
    step, stage, ordinal = key
    parts = [record for (s, name, o), (_, record) in _keyed(stream).items()
             if (s, name) == (step, stage) and o < ordinal]  # fmt: skip
    return sum(len(record.rows) for record in parts)


def _owner(batch: Sequence[Verified], key: Key, row: int, rows: int, earlier: int) -> str | None:
    _, stage, ordinal = key
    if stage.startswith(_HIDDEN):
        return _within(batch, [request.scheduled or 0 for request in batch], row)
    if stage == _PER_SAMPLE or (stage in _LOGITS and ordinal == 0):
        sizes = [len(request.draft_token_ids) + 1 for request in batch]
        return _within(batch, sizes, row + (earlier if stage == _PER_SAMPLE else 0))
    # What is left has as many rows of each request.
    return batch[row * len(batch) // rows].request if batch and rows % len(batch) == 0 else None


def _within(batch: Sequence[Verified], sizes: Sequence[int], row: int) -> str | None:
    ends = accumulate(sizes)
    return next((r.request for r, end in zip(batch, ends, strict=True) if row < end), None)


def _of_outputs(first: RunHistory, second: RunHistory) -> Divergence | None:
    ours, theirs = Arm.of(first, "the first run"), Arm.of(second, "the second")
    for request in ours.requests | theirs.requests:
        for finding in compare(request, ours, theirs)[1]:
            return Divergence(
                stage="output",
                step=finding.where.step,
                rank=None,
                request=request,
                where=finding.where,
                detail=finding.message,
            )
    return None
