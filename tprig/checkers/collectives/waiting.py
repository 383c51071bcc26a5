"""Who waited for whom when nothing moved any more: the wait-for graph, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tprig.checkers.collectives.alphabet import Alphabet, told
from tprig.checkers.collectives.track import PENDING, Track
from tprig.evidence import Finding, Operation, Progress


@dataclass(frozen=True)
class Wait:
    """A rank that has entered a collective and not left it."""

    track: Track
    call: int
    """Of the track."""
    operation: Operation
    nth: int
    """How many collectives of this group it had entered before."""


@dataclass(frozen=True)
class Waits:
    """The state of all ranks when nothing moved any more."""

    tracks: Mapping[int, Track]
    waiting: Mapping[int, Wait]
    edges: Mapping[int, tuple[int, ...]]
    """Rank -> the ranks that have not entered what it waits in."""
    cycle: tuple[int, ...]
    """Ranks that wait for one another in a circle; empty without one."""
    states: Mapping[int, str | None]
    """Rank -> the state of its process, as the client saw it last."""
    moving: frozenset[int]
    """Ranks that entered further collectives while the client looked."""
    counts: Mapping[int, int]
    """Rank -> how many semantic collectives it had entered."""


def waits(tracks: Mapping[int, Track], progress: Sequence[Progress], alphabet: Alphabet) -> Waits:
    """Who waits in what, and for whom."""
    semantic = alphabet.where(layer="semantic")
    counts = {r: int(semantic[t.signatures].sum()) + t.first for r, t in tracks.items()}
    waiting = {r: w for r, t in tracks.items() if (w := _wait(t, alphabet)) is not None}
    edges = {r: _awaited(w, tracks, alphabet) for r, w in waiting.items()}
    return Waits(
        tracks=tracks,
        waiting=waiting,
        edges=edges,
        cycle=_cycle(edges),
        states={p.rank: p.state for p in progress},
        moving=frozenset(_moving(progress)),
        counts=counts,
    )


def _moving(progress: Sequence[Progress]) -> list[int]:
    entered: dict[int, list[int]] = {}
    for record in progress:
        entered.setdefault(record.rank, []).append(record.entered)
    return [rank for rank, counts in entered.items() if counts[-1] > counts[0]]


def _wait(track: Track, alphabet: Alphabet) -> Wait | None:
    """The outermost collective that a rank is in."""
    for call in np.flatnonzero(track.leave_ns == PENDING):
        operation = alphabet.operations[track.signatures[call]]
        if operation is not None and len(operation.ranks) > 1:
            nth = _entered(track, operation, alphabet, until=int(call))
            return Wait(track, int(call), operation, nth)
    return None


def _entered(
    track: Track, operation: Operation, alphabet: Alphabet, until: int | None = None
) -> int:
    """How many collectives of an operation's layer and group a rank has entered."""
    same = alphabet.where(layer=operation.layer, group=operation.group, ranks=operation.ranks)
    return int(same[track.signatures[:until]].sum())


def _awaited(wait: Wait, tracks: Mapping[int, Track], alphabet: Alphabet) -> tuple[int, ...]:
    return tuple(
        rank
        for rank in wait.operation.ranks
        if rank in tracks
        and rank != wait.track.rank
        and _entered(tracks[rank], wait.operation, alphabet) <= wait.nth
    )


def _cycle(edges: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    """A circle in the wait-for graph: what is left when all that wait for nobody in it are out."""
    left = {rank: {r for r in targets if r in edges} for rank, targets in edges.items()}
    while free := {rank for rank, targets in left.items() if not targets}:
        left = {rank: targets - free for rank, targets in left.items() if rank not in free}
    path: list[int] = []
    rank = min(left, default=None)
    while rank is not None and rank not in path:
        path.append(rank)
        rank = min(left[rank])
    return tuple(path[path.index(rank) :]) if rank is not None else ()


# --- findings -----------------------------------------------------------------------------------


def stalls(waits: Waits, alphabet: Alphabet) -> list[Finding]:
    """What a hang is called where the ranks' sequences agree as far as they go."""
    if waits.cycle:
        return [_circle(waits)]
    gone = [r for r, state in waits.states.items() if state in ("stopped", "dead")]
    awaited = {r for targets in waits.edges.values() for r in targets if r not in waits.waiting}
    fewest = min(waits.counts.values(), default=0)
    behind = {r for r, n in waits.counts.items() if n == fewest < max(waits.counts.values())}
    blamed = sorted(
        awaited or set(gone) & set(waits.tracks) or (set() if waits.waiting else behind)
    )
    if blamed:
        return [_blamed(rank, waits, alphabet) for rank in blamed]
    if 0 < len(waits.waiting) < len(waits.tracks):
        return [_left_alone(waits)]
    return [_frozen(waits)] if waits.tracks else []


def _circle(waits: Waits) -> Finding:
    told_of = [
        f"rank {r} waits in {_at(waits.waiting[r])} for {_ranks(waits.edges[r])}"
        for r in waits.cycle
    ]
    first = waits.waiting[waits.cycle[0]]
    return Finding(
        anomaly="collective.cross-group-order",
        message=(
            "expected every rank to enter the collectives of all its groups in one order, found "
            f"that they wait in a circle: {'; '.join(told_of)}"
        ),
        where=first.track.where(first.call),
    )


def _blamed(rank: int, waits: Waits, alphabet: Alphabet) -> Finding:
    """A rank for which the others wait, or whose process does nothing any more."""
    track = waits.tracks[rank]
    state = waits.states.get(rank)
    # It may have moved between two looks before it went.
    slow = rank in waits.moving and state not in _GONE
    others = [w for r, w in waits.waiting.items() if rank in waits.edges[r]]
    whose = f"rank {rank}" + (f", whose process is {state}," if state in _GONE else "")
    if others:
        expected = f"{whose} to enter {_at(others[0])}, in which {_whom(others)}"
        place = _last(track, alphabet)
        found = f"it went on slowly, and had come to {place}" if slow else f"it last {place}"
    elif rank in waits.waiting:
        expected, found = f"{whose} to leave {_place(waits, rank)}", "it never did"
    else:
        expected, found = f"{whose} to go on", f"it last {_last(track, alphabet)}"
    return Finding(
        anomaly="rank.slow" if slow else "rank.stall",
        message=f"expected {expected}, found that {found}",
        where=track.where(waits.waiting[rank].call if rank in waits.waiting else None),
    )


_GONE = ("stopped", "dead")


def _place(waits: Waits, rank: int) -> str:
    wait = waits.waiting.get(rank)
    return "what it was at outside of any collective" if wait is None else _at(wait)


def _last(track: Track, alphabet: Alphabet) -> str:
    if not len(track):
        return "issued nothing"
    semantic = np.flatnonzero(alphabet.where(layer="semantic")[track.signatures])
    call = int(semantic[-1]) if len(semantic) else len(track) - 1
    did = "entered" if track.leave_ns[call] == PENDING else "left"
    return f"{did} call {track.first + call}, {told(alphabet.operations[track.signatures[call]])}"


def _left_alone(waits: Waits) -> Finding:
    """All have entered, some have left, and some never do."""
    first = next(iter(waits.waiting.values()))
    gone = sorted(set(waits.tracks) - set(waits.waiting))
    return Finding(
        anomaly="rank.stall",
        message=(
            f"expected all ranks to leave {_at(first)}, found that {_ranks(gone)} did and "
            f"{_ranks(sorted(waits.waiting))} never did: the operation itself hangs"
        ),
        where=first.track.where(first.call),
    )


def _frozen(waits: Waits) -> Finding:
    rank, track = next(iter(waits.tracks.items()))
    wait = waits.waiting.get(rank)
    where = "outside of any collective" if wait is None else f"in {_at(wait)}"
    counts = "/".join(str(count) for count in waits.counts.values())
    return Finding(
        anomaly="rank.equal-freeze",
        message=(
            f"expected the engine to go on, found all ranks at the same place, {where}, after "
            f"{counts} collectives: they have not parted; whatever they all wait for is elsewhere"
        ),
        where=track.where(None if wait is None else wait.call),
    )


def _at(wait: Wait) -> str:
    return f"call {wait.track.first + wait.call}, {told(wait.operation)}"


def _whom(waiting: Sequence[Wait]) -> str:
    ranks = [wait.track.rank for wait in waiting]
    return f"{_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'}"


def _ranks(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks))
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def notes(waits: Waits) -> dict[str, str]:
    """Where each rank was, for a reader."""
    return {
        f"rank {rank}": (
            f"{waits.states.get(rank) or 'in a state that is not known'}, after "
            f"{waits.counts[rank]} collectives, {_place(waits, rank)}"
            + (f", waiting for {_ranks(waits.edges[rank])}" if waits.edges.get(rank) else "")
        )
        for rank in waits.tracks
    }
