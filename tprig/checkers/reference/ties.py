"""What two tie rules make of one call: which rows they part, and what that moves.

One backend keeps all tokens that tie at the top-k edge and another one exactly k of them, so their
supports differ, and so does what probabilities are divided by. Both are right by their own rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tprig.checkers.reference.call import LogprobsMode, SamplerCall, TieRule
from tprig.checkers.reference.processing import Processor
from tprig.checkers.reference.rows import Row


@dataclass(frozen=True, eq=False)
class Side:
    """One backend: its rule, and what it made of the logits."""

    tie_rule: TieRule
    processed_logits: npt.NDArray[np.float32] | None = None
    """[N, V]; None where they were not kept."""


class Ties:
    """What parts two backends in one well-formed call.

    Args:
        call: what both read; its own `tie_rule` is not looked at.
        mine: one backend.
        theirs: the other one.
    """

    def __init__(self, call: SamplerCall, mine: Side, theirs: Side) -> None:
        self._scores_follow = call.logprobs_mode is LogprobsMode.PROCESSED_LOGPROBS
        self._sides = (mine, theirs)
        self._processors = [Processor(replace(call, tie_rule=s.tie_rule)) for s in self._sides]

    def part(self, row: int) -> bool:
        """Whether the rules make the two keep different tokens of a row, each by its own rule.

        Not where one rule admits both: then it is rounding that parts them, or a fault.
        """
        return self._parted(row) is not None

    def shift(self, row: int, token: int) -> float:
        """How much larger a token's logprob is by their rule than by mine, in nats.

        Exactly 0 where the rules do not part the row.
        """
        rows = self._parted(row)
        if rows is None or not self._scores_follow:
            return 0.0
        mine, theirs = (each.log_mass.logprob(each.at(token)).value for each in rows)
        return theirs - mine if math.isfinite(mine) and math.isfinite(theirs) else 0.0

    def _parted(self, row: int) -> tuple[Row, Row] | None:
        mine, theirs = self._sides
        if mine.tie_rule is theirs.tie_rule:
            return None
        with np.errstate(all="ignore"):
            by_rule = [processor.processed(row) for processor in self._processors]
        settled = [
            _settled(each, side, row) for each, side in zip(by_rule, self._sides, strict=True)
        ]
        a, b = settled
        if a is None or b is None or _under_one(by_rule, (a, b)):
            return None
        return a, b


def _settled(row: Row, side: Side, at: int) -> Row | None:
    """The row as it was found; None where its rule does not admit that, or leaves it open."""
    if side.processed_logits is None:
        return None if row.maybe.any() else row
    kept = side.processed_logits[at] > -np.inf
    return row.settled(kept) if row.admits(kept) else None


def _under_one(by_rule: Sequence[Row], found: tuple[Row, Row]) -> bool:
    """Whether one of the rules admits both."""
    return any(all(rule.admits(each.kept) for each in found) for rule in by_rule)
