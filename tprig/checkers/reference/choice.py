"""The argmax of scores that float32 knows only so well: who wins, and who else may."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tprig.checkers.reference import noise
from tprig.checkers.reference.rows import ROUNDING, Bools, Scores


@dataclass(frozen=True)
class Choice:
    """The outcome of one argmax over tokens, the first of equals winning."""

    scores: Scores
    """-inf for tokens that cannot be drawn."""

    @cached_property
    def winner(self) -> int:
        """Token 0 where nothing can be drawn at all."""
        return int(np.argmax(self.scores.value))

    @cached_property
    def possible(self) -> Bools:
        """Tokens that float32 arithmetic may find to be the largest."""
        value, low, high = self.scores.value, self.scores.low, self.scores.high
        floor, best = low.max(), value[self.winner]
        possible = (high >= floor) & (high > -np.inf)
        if floor == -np.inf:
            possible[0] = True
        # Same value and same bounds: the same inputs, which tie in float32 too. The first wins.
        ties = (value == best) & (high == high[self.winner]) & (best > -np.inf)
        ties[self.winner] = False
        return np.asarray(possible & ~ties)

    @property
    def ambiguous(self) -> bool:
        """More than one token may win."""
        return int(self.possible.sum()) > 1

    def allows(self, token: int) -> bool:
        """Whether the token may win."""
        return 0 <= token < len(self.possible) and bool(self.possible[token])

    def margin(self, token: int) -> float:
        """How far the token's score lies below the best other one's, in nats; negative above."""
        value = self.scores.value
        if not 0 <= token < len(value):
            return math.inf
        best = max(value[:token].max(initial=-np.inf), value[token + 1 :].max(initial=-np.inf))
        own = float(value[token])
        return math.inf if own == -math.inf else float(best) - own

    def band(self, token: int) -> float:
        """The margin up to which float32 may decide otherwise."""
        value, low, high = self.scores.value, self.scores.low, self.scores.high
        band = float(value[self.winner] - low[self.winner])
        if 0 <= token < len(value) and value[token] > -np.inf:
            band += float(high[token] - value[token])
        return band


def gumbel_max(scores: Scores, seed: int, position: int, *, fp64: bool) -> Choice:
    """The token that Gumbel noise of this seed and position draws from logits."""
    drawn = noise.gumbel(seed, position, len(scores.value), fp64=fp64)
    band = noise.gumbel_band(drawn, fp64=fp64)
    if not fp64:
        sums = np.abs(scores.value + drawn)
        band += ROUNDING * np.where(np.isfinite(sums), sums, 0.0)
    return Choice(scores.plus(drawn, band))
