"""Aligns two sequences of collectives by edit distance, in bounded memory and time.

What the sequences have in common is skipped at the speed of a comparison; only around a difference
a window is aligned exactly (Needleman and Wunsch 1970, with both ends free: Sellers 1980), up to
where the sequences run together again. A window is as long as many steps of a large model, so what
does not run together within one is no insertion any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tprig.checkers.collectives.alphabet import STEP, Alphabet, Ints

WINDOW = 512
"""Calls of each sequence that are aligned at once."""
ANCHOR = 6
"""Calls in a row that must agree for the sequences to run together again."""
BLOCK = 1 << 14
EDITS_MOST = 256

GAP, STEP_GAP, SAME_SITE, OTHER, NEVER = 2, 3, 2, 3, 16
"""Costs: two gaps cost more than one call in the place of another, and less than two such."""

Costs = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Edit:
    """One difference. `a` and `b` are positions; the one that is None has nothing there."""

    a: int | None
    b: int | None
    before: tuple[int, int]
    """How far both sequences had come, which is where the difference lies."""


@dataclass(frozen=True)
class Alignment:
    """Where two sequences differ, in order."""

    edits: tuple[Edit, ...]
    whole: bool
    """False when they never run together again, or differ in too many places to tell all."""

    @property
    def first(self) -> Edit | None:
        """The first difference; None where the sequences agree."""
        return self.edits[0] if self.edits else None


def align(a: Ints, b: Ints, alphabet: Alphabet, *, ended: bool) -> Alignment:
    """The differences between two sequences of signatures and `STEP`s.

    Args:
        a: [calls].
        b: [calls].
        alphabet: what the numbers stand for.
        ended: False when a sequence may go on beyond what is known: that the other one is longer
            is then no difference.
    """
    costs = _Costs(alphabet)
    edits: list[Edit] = []
    i = j = 0
    while len(edits) < EDITS_MOST:
        same = common_prefix(a[i:], b[j:])
        i, j = i + same, j + same
        if i == len(a) or j == len(b):
            tail = _tail(a, b, i, j) if ended else []
            return Alignment((*edits, *tail), whole=True)
        window_a, window_b = a[i : i + WINDOW], b[j : j + WINDOW]
        last = i + WINDOW >= len(a) and j + WINDOW >= len(b)
        path = costs.path(window_a, window_b, free=not (last and ended))
        kept = path if last else _until_anchor(path)
        edits += [Edit(_at(i, x), _at(j, y), (i + p, j + q)) for x, y, p, q in _edits(kept)]
        if last or not kept:
            rest = [] if kept else [Edit(i, j, (i, j))]
            return Alignment((*edits, *rest), whole=last)
        i, j = i + kept[-1].a_end, j + kept[-1].b_end
    return Alignment(tuple(edits), whole=False)


def common_prefix(a: Ints, b: Ints) -> int:
    """How many calls agree before the first difference."""
    length = min(len(a), len(b))
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        differs = a[start:end] != b[start:end]
        if differs.any():
            return start + int(differs.argmax())
    return length


def _at(base: int, offset: int | None) -> int | None:
    return None if offset is None else base + offset


def _tail(a: Ints, b: Ints, i: int, j: int) -> Iterator[Edit]:
    yield from (Edit(x, None, (x, j)) for x in range(i, min(len(a), i + EDITS_MOST)))
    yield from (Edit(None, y, (i, y)) for y in range(j, min(len(b), j + EDITS_MOST)))


@dataclass(frozen=True, slots=True)
class _Move:
    a: int | None
    b: int | None
    a_end: int
    b_end: int
    equal: bool


def _edits(path: list[_Move]) -> Iterator[tuple[int | None, int | None, int, int]]:
    for move in path:
        if not move.equal:
            before = move.a_end - (move.a is not None), move.b_end - (move.b is not None)
            yield move.a, move.b, *before


def _until_anchor(path: list[_Move]) -> list[_Move]:
    """The path up to the last run of equal calls that is long enough; empty without one."""
    run = 0
    for place in range(len(path) - 1, -1, -1):
        run = run + 1 if path[place].equal else 0
        if run == ANCHOR:
            return path[: place + ANCHOR]
    return []


class _Costs:
    """What it costs to have one call in the place of another."""

    def __init__(self, alphabet: Alphabet) -> None:
        self._kind = alphabet.feature("kind")
        self._group = alphabet.feature("group")
        self._site = alphabet.feature("site")

    def path(self, a: Ints, b: Ints, *, free: bool) -> list[_Move]:
        """The cheapest way through both.

        Args:
            a: [rows].
            b: [columns].
            free: True to end where either sequence does, without a cost for the rest of the other.
        """
        swap, drop, take = self._substitutions(a, b), _gaps(a), _gaps(b)
        table = _fill(swap, drop, take)
        x, y = _end(table) if free else (len(a), len(b))
        moves = []
        while x or y:
            move = _back(table, swap, drop, x, y)
            moves.append(move)
            x, y = x - (move.a is not None), y - (move.b is not None)
        return moves[::-1]

    def _substitutions(self, a: Ints, b: Ints) -> Costs:
        """[rows, columns]."""
        similar = (self._kind[a][:, None] == self._kind[b]) & (
            self._group[a][:, None] == self._group[b]
        )
        cost = np.where(similar & (self._site[a][:, None] == self._site[b]), SAME_SITE, OTHER)
        cost[(a[:, None] == STEP) | (b == STEP)] = NEVER
        cost[a[:, None] == b] = 0
        return cost.astype(np.int32)


def _gaps(sequence: Ints) -> Costs:
    return np.where(sequence == STEP, STEP_GAP, GAP).astype(np.int32)


def _fill(swap: Costs, drop: Costs, take: Costs) -> Costs:
    """Cost of the cheapest way to each place. [rows + 1, columns + 1]."""
    across = np.concatenate([[0], np.cumsum(take)]).astype(np.int32)
    table = np.empty((len(drop) + 1, len(take) + 1), dtype=np.int32)
    table[0] = across
    for row, gap in enumerate(drop):
        above = table[row]
        best = above + gap
        np.minimum(best[1:], above[:-1] + swap[row], out=best[1:])
        # A run of gaps along the row, all of them at once.
        table[row + 1] = np.minimum.accumulate(best - across) + across
    return table


def _end(table: Costs) -> tuple[int, int]:
    """The cheapest place on the two far edges, the furthest of those."""
    rows, columns = table.shape[0] - 1, table.shape[1] - 1
    edges = [(int(table[x, columns]), -x, x, columns) for x in range(rows + 1)]
    edges += [(int(table[rows, y]), -y, rows, y) for y in range(columns + 1)]
    # Near the corner everything is cheap: count what is left unused as half a gap a call.
    best = min(edges, key=lambda e: (2 * e[0] + GAP * (rows - e[2] + columns - e[3]), e[1]))
    return best[2], best[3]


def _back(table: Costs, swap: Costs, drop: Costs, x: int, y: int) -> _Move:
    """The last move of the cheapest way to a place: equal calls first, then gaps."""
    here = table[x, y]
    if x and y and swap[x - 1, y - 1] == 0 and table[x - 1, y - 1] == here:
        return _Move(x - 1, y - 1, x, y, equal=True)
    if x and table[x - 1, y] + drop[x - 1] == here:
        return _Move(x - 1, None, x, y, equal=False)
    if x and y and table[x - 1, y - 1] + swap[x - 1, y - 1] == here:
        return _Move(x - 1, y - 1, x, y, equal=False)
    return _Move(None, y - 1, x, y, equal=False)
