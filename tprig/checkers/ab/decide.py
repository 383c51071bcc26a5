"""GO, NO-GO or INCONCLUSIVE: whether a loss beyond the margin is ruled out, proven, or neither."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tprig.checkers.ab.intervals import Interval, Mean, power

Decision = Literal["GO", "NO-GO", "INCONCLUSIVE"]
WANTED_POWER = 0.8
MOST_PAIRS = 10_000
"""A number of pairs beyond which it is said that no affordable number would decide."""


@dataclass(frozen=True)
class Margins:
    """What is put up with, in natural logarithms of gains (negative is a loss)."""

    low: float
    high: float | None
    """None where any gain is welcome."""


def margins(loss: float, *, equivalence: bool) -> Margins:
    """The margins for a loss of this fraction; alike in both directions for equivalence."""
    low = math.log1p(-loss)
    return Margins(low, -low if equivalence else None)


def decide(mean: Mean, confidence: float, limits: Margins) -> Decision:
    """Judge a mean gain.

    Without an upper margin this is a test of non-inferiority by the two-sided interval, so that a
    false NO-GO has half of what the confidence leaves. With one it is equivalence by two one-sided
    tests (TOST), each at what the confidence leaves, so by the interval at twice that; a NO-GO
    then lies wholly beyond one of the margins.
    """
    interval = mean.interval(confidence)
    if interval.high < limits.low or (limits.high is not None and interval.low > limits.high):
        return "NO-GO"
    if limits.high is None:
        return "GO" if interval.low > limits.low else "INCONCLUSIVE"
    tested = mean.interval(2 * confidence - 1)
    return "GO" if tested.low > limits.low and tested.high < limits.high else "INCONCLUSIVE"


def resolvable(mean: Mean, pairs: int, confidence: float) -> float:
    """The smallest loss, as a fraction, that so many such pairs tell from none 4 times in 5."""
    if mean.deviation == 0:
        return 0.0
    low, high = 0.0, 1.0
    while _power(high * mean.deviation, mean.deviation, pairs, confidence) < WANTED_POWER:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        enough = _power(middle * mean.deviation, mean.deviation, pairs, confidence) >= WANTED_POWER
        low, high = (low, middle) if enough else (middle, high)
    return -math.expm1(-high * mean.deviation)


def pairs_to_resolve(loss: float, mean: Mean, confidence: float) -> int | None:
    """How many pairs tell a loss of this fraction from none 4 times in 5; None beyond the most."""
    effect = -math.log1p(-loss)
    return _fewest(lambda pairs: _power(effect, mean.deviation, pairs, confidence))


def pairs_to_decide(mean: Mean, confidence: float, limits: Margins) -> int | None:
    """How many pairs in all would decide 4 times in 5, were the estimate and the noise true.

    None where no affordable number would: the estimate is at the margin.
    """
    if limits.high is None:
        distance = abs(mean.estimate - limits.low)
        return _fewest(lambda pairs: _power(distance, mean.deviation, pairs, confidence))
    if limits.low < mean.estimate < limits.high:
        below, above = mean.estimate - limits.low, limits.high - mean.estimate
        one_sided = 2 * confidence - 1

        def both(pairs: int) -> float:
            chances = [_power(d, mean.deviation, pairs, one_sided) for d in (below, above)]
            return sum(chances) - 1

        return _fewest(both)
    distance = max(limits.low - mean.estimate, mean.estimate - limits.high)
    return _fewest(lambda pairs: _power(distance, mean.deviation, pairs, confidence))


def _power(effect: float, deviation: float, pairs: int, confidence: float) -> float:
    return power(effect, deviation, pairs, pairs - 2, confidence)


def _fewest(chance: Callable[[int], float]) -> int | None:
    """The smallest even number of pairs with enough power, by bisection: power grows with pairs."""
    low, high = 2, MOST_PAIRS // 2
    if chance(2 * high) < WANTED_POWER:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if chance(2 * middle) >= WANTED_POWER else (middle + 1, high)
    return 2 * low


def excludes_zero(interval: Interval) -> bool:
    """True when the interval tells the arms apart."""
    return interval.low > 0 or interval.high < 0
