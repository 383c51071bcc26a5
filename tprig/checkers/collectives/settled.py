"""Where ranks first settled something differently, or computed something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tprig.checkers.collectives.track import Track
from tprig.evidence import Decision, StageDigest

Item = TypeVar("Item", Decision, StageDigest)

ORDER = ("schedule", "batch", "gathered_logits", "processed_logits", "verification", "mask",
         "acceptance", "draft", "host_copy")  # fmt: skip
"""In which order things are settled within a step."""
SHARED_STAGES = ("gathered_logits", "processed_logits", "verification", "mask")
"""Stages whose tensors every rank of a tensor-parallel group has whole, and so alike."""


@dataclass(frozen=True)
class Difference(Generic[Item]):
    """Something that two ranks settled, or computed, differently."""

    expected: Track
    found: Track
    ours: Item | None
    theirs: Item | None
    line: int | None
    """Of `theirs`, in the stream of `found`."""
    step: int
    name: str
    majority: bool
    """True when more ranks say `ours` than anything else."""

    @property
    def time(self) -> tuple[int, int]:
        """Orders differences by when they were settled."""
        return self.step, ORDER.index(self.name) if self.name in ORDER else len(ORDER)


def decisions(tracks: Sequence[Track]) -> Iterator[Difference[Decision]]:
    """Every decision in which a rank differs from most others, in the order of the steps."""
    if _equal([[(d.step, d.kind, d.facts) for _, d in t.decisions] for t in tracks], tracks):
        return
    yield from _differences(
        {t.rank: _placed((line, d, d.step, d.kind) for line, d in t.decisions) for t in tracks},
        tracks,
        lambda decision: _canonical(decision.facts),
    )


def values(tracks: Sequence[Track]) -> Iterator[Difference[StageDigest]]:
    """Every tensor that the ranks must have alike and have not, in the order of the steps."""
    if _equal([[value for _, value in t.values] for t in tracks], tracks):
        return
    yield from _differences(
        {
            t.rank: _placed(
                (line, v, v.step, v.stage) for line, v in t.values if v.stage in SHARED_STAGES
            )
            for t in tracks
        },
        tracks,
        lambda value: (value.dtype, tuple(value.shape), value.digest),
    )


def _equal(said: Sequence[Sequence[object]], tracks: Sequence[Track]) -> bool:
    """True when all ranks say the same as far as they go, the usual case, decided at once."""
    shortest = min(map(len, said), default=0)
    if any(t.ended for t in tracks) and any(len(items) != shortest for items in said):
        return False
    return all(items[:shortest] == said[0][:shortest] for items in said)


_Key = tuple[int, str, int]
"""Step, name, and how often it was met before in the step."""


def _placed(items: Iterable[tuple[int, Item, int, str]]) -> dict[_Key, tuple[int, Item]]:
    met: Counter[tuple[int, str]] = Counter()
    placed = {}
    for line, item, step, name in items:
        placed[step, name, met[step, name]] = (line, item)
        met[step, name] += 1
    return placed


def _differences(
    by_rank: Mapping[int, Mapping[_Key, tuple[int, Item]]],
    tracks: Sequence[Track],
    content: Callable[[Item], Hashable],
) -> Iterator[Difference[Item]]:
    track_of = {track.rank: track for track in tracks}
    reached = {r: max((key[0] for key in placed), default=-1) for r, placed in by_rank.items()}
    keys = {key for placed in by_rank.values() for key in placed}
    ordered = sorted(keys, key=lambda k: (k[0], ORDER.index(k[1]) if k[1] in ORDER else 99, k[2]))
    for key in ordered:
        said = {r: placed[key] for r, placed in by_rank.items() if key in placed}
        # A rank that is silent on something can no longer say it once it has gone on.
        silent = [
            r for r in by_rank if r not in said and (track_of[r].ended or reached[r] > key[0])
        ]
        contents: dict[int, Hashable] = {r: content(item) for r, (_, item) in said.items()}
        contents |= dict.fromkeys(silent)
        votes = Counter(contents.values())
        if len(votes) < 2:
            continue
        (winner, most), (_, next_most), *_ = votes.most_common()
        right = min(r for r, said_ in contents.items() if said_ == winner)
        for rank, said_ in contents.items():
            if said_ != winner:
                line, theirs = said.get(rank, (None, None))
                yield Difference(
                    expected=track_of[right],
                    found=track_of[rank],
                    ours=said[right][1] if right in said else None,
                    theirs=theirs,
                    line=line,
                    step=key[0],
                    name=key[1],
                    majority=most > next_most,
                )


def _canonical(facts: Mapping[str, object]) -> Hashable:
    return tuple((name, _frozen(value)) for name, value in sorted(facts.items()))


def _frozen(value: object) -> Hashable:
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    return tuple(value) if isinstance(value, list) else (type(value).__name__, value)


def told(decision: Decision | None, other: Decision | None) -> str:
    """What one decision says where it differs from another one."""
    if decision is None:
        return "nothing"
    return differing(decision.facts, other.facts if other else {})


def differing(facts: Mapping[str, object], other: Mapping[str, object]) -> str:
    """What facts say where they differ from others."""
    found = [
        f"{name} {_short(value)}"
        for name, value in facts.items()
        if name not in other or other[name] != value
    ]
    lacking = [f"no {name}" for name in other if name not in facts]
    return ", ".join([*found, *lacking]) or "the same"


SHOWN_CHARACTERS = 160


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
