"""Intervals for the mean of few paired differences.

The interval that a verdict rests on is Student's, of the mean that is adjusted for order: in blocks
ABBA a linear drift and an effect of coming first both add the same amount to pairs AB as they take
from pairs BA, so one regressor takes both out, for one degree of freedom. The bootstrap intervals
stand beside it. The plain percentile interval covers too little where pairs are few; expanding its
level as Hesterberg does (The American Statistician 69(4), 2015, section 5) repairs most of that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

ENUMERATED_PAIRS = 10
"""Up to so many the bootstrap is exact: 92,378 resamples, as multisets, are all there are."""


@dataclass(frozen=True)
class Interval:
    """A two-sided interval, in natural logarithms of ratios."""

    low: float
    high: float


@dataclass(frozen=True)
class Mean:
    """A mean and what its uncertainty is made of."""

    estimate: float
    deviation: float
    """Standard deviation of one difference."""
    freedom: int
    """Degrees of freedom of the deviation."""
    count: float
    """The estimate's variance is the squared deviation over this."""

    @property
    def error(self) -> float:
        """The standard error of the estimate."""
        return self.deviation / math.sqrt(self.count)

    def interval(self, confidence: float) -> Interval:
        """Student's interval."""
        half = float(special.stdtrit(self.freedom, (1 + confidence) / 2)) * self.error
        return Interval(self.estimate - half, self.estimate + half)


def plain_mean(differences: Floats) -> Mean:
    """The mean of the differences as they are.

    Raises:
        ValueError: for fewer than 2.
    """
    count = _counted(differences, 2)
    deviation = float(differences.std(ddof=1))
    return Mean(float(differences.mean()), deviation, count - 1, count)


def adjusted_mean(differences: Floats, signs: Floats) -> Mean:
    """The mean after the effect of order was taken out by least squares.

    Args:
        differences: `[pairs]`.
        signs: `[pairs]`, +1 or -1 by the order within each pair.

    Raises:
        ValueError: for fewer than 3 pairs, or where all have the same order.
    """
    count = _counted(differences, 3)
    forward, backward = differences[signs > 0], differences[signs < 0]
    if not forward.size or not backward.size:
        raise ValueError("expected pairs of both orders, found one: order cannot be told apart")
    estimate = (forward.mean() + backward.mean()) / 2
    residuals = ((forward - forward.mean()) ** 2).sum() + ((backward - backward.mean()) ** 2).sum()
    freedom = count - 2
    # The variance of a mean of two groups' means.
    effective = 4 / (1 / forward.size + 1 / backward.size)
    return Mean(float(estimate), math.sqrt(float(residuals) / freedom), freedom, effective)


def order_effect(differences: Floats, signs: Floats) -> float:
    """Half of what pairs AB exceed pairs BA by: drift, and the effect of coming first."""
    return float(differences[signs > 0].mean() - differences[signs < 0].mean()) / 2


@dataclass(frozen=True)
class Bootstrap:
    """The two percentile intervals of one distribution of resampled means."""

    plain: Interval
    expanded: Interval
    """At the level that makes up for few pairs (t-expanded)."""


def bootstrap(differences: Floats, confidence: float, resamples: int, seed: int) -> Bootstrap:
    """The percentile bootstrap intervals of the mean, exact up to `ENUMERATED_PAIRS`.

    The bootstrap's variance has n where the unbiased one has n - 1, and a normal quantile stands
    for Student's: the expanded level puts both right.

    Args:
        differences: `[pairs]`.
        confidence: of the two-sided intervals.
        resamples: how many are drawn where they are not enumerated.
        seed: decides them.

    Raises:
        ValueError: for fewer than 2 differences.
    """
    count = _counted(differences, 2)
    quantile = float(special.stdtrit(count - 1, (1 + confidence) / 2))
    tail = (1 - confidence) / 2
    expanded = float(special.ndtr(-math.sqrt(count / (count - 1)) * quantile))
    levels = [tail, 1 - tail, expanded, 1 - expanded]
    if count > ENUMERATED_PAIRS:
        rng = np.random.default_rng([seed, 2])
        drawn = rng.integers(0, count, (count, resamples), dtype=np.uint16)
        found = np.quantile(differences[drawn].sum(axis=0) / count, levels).tolist()
    else:
        counts, chances = _multisets(count)
        # Not by BLAS, whose threads cost more than they save here, and add up in any order.
        means = np.einsum("i,ij->j", differences / count, counts)
        found = weighted_quantiles(means, chances, levels)
    return Bootstrap(Interval(found[0], found[1]), Interval(found[2], found[3]))


_BINS = 1024


def weighted_quantiles(values: Floats, weights: Floats, levels: Sequence[float]) -> list[float]:
    """The smallest value up to which the weights add up to each level.

    What sorting all values would give, in a fraction of the time: they are binned, and only the bin
    that a level falls into is sorted.

    Args:
        values: `[n]`.
        weights: `[n]`, adding up to 1.
        levels: between 0 and 1.
    """
    low, high = float(values.min()), float(values.max())
    if low == high:
        return [low for _ in levels]
    places = ((values - low) * ((_BINS - 1) / (high - low))).astype(np.int16)
    cumulated = np.cumsum(np.bincount(places, weights, _BINS))
    found = []
    for level in levels:
        place = min(int(np.searchsorted(cumulated, level)), _BINS - 1)
        mine = np.flatnonzero(places == place)
        mine = mine[np.argsort(values[mine])]
        before = cumulated[place - 1] if place else 0.0
        within = int(np.searchsorted(before + np.cumsum(weights[mine]), level))
        found.append(float(values[mine[min(within, mine.size - 1)]]))
    return found


@cache
def _multisets(count: int) -> tuple[Floats, Floats]:
    """Every multiset of `count` out of `count` things: how often each is in it, and its chance.

    Returns:
        `[count, multisets]` and `[multisets]`; there are `comb(2 * count - 1, count)`.
    """
    total = 2 * count - 1
    # Stars and bars: the gaps between bars are the counts.
    chosen = itertools.chain.from_iterable(itertools.combinations(range(total), count - 1))
    bars = np.fromiter(chosen, np.int16).reshape(-1, count - 1)
    edges = np.pad(bars, ((0, 0), (1, 0)), constant_values=-1)
    edges = np.pad(edges, ((0, 0), (0, 1)), constant_values=total)
    counts = (np.diff(edges, axis=1) - 1).astype(np.float64)
    chances = special.gammaln(count + 1) - special.gammaln(counts + 1).sum(axis=1)
    return np.ascontiguousarray(counts.T), np.exp(chances - count * math.log(count))


def lag_one(differences: Floats) -> float | None:
    """The correlation of each difference with the next one; None where nothing varies."""
    centred = differences - differences.mean()
    total = float((centred**2).sum())
    return float((centred[:-1] * centred[1:]).sum()) / total if total > 0 else None


def _counted(differences: Floats, least: int) -> int:
    if differences.size < least:
        raise ValueError(f"expected at least {least} differences, found {differences.size}")
    return differences.size


def power(effect: float, deviation: float, count: float, freedom: int, confidence: float) -> float:
    """The chance that the interval lies above zero when the true mean is `effect`.

    From the noncentral t distribution; `effect` and `deviation` are in the same unit.
    """
    if deviation == 0:
        return float(effect > 0)
    quantile = float(special.stdtrit(freedom, (1 + confidence) / 2))
    shift = effect * math.sqrt(count) / deviation
    return 1 - float(special.nctdtr(freedom, shift, quantile))
