"""From the pairs of a comparison to a decision per metric; every number of it can be made again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tprig.checkers.ab import intervals
from tprig.checkers.ab.decide import Decision, decide, margins, pairs_to_decide, resolvable
from tprig.checkers.ab.intervals import Floats, Interval, Mean
from tprig.checkers.ab.metrics import METRICS, gain
from tprig.checkers.ab.order import signs
from tprig.checkers.ab.pairs import Pair
from tprig.evidence import Comparison, Metric

LEAST_PAIRS = 4
"""Fewer leave no more than one degree of freedom."""


@dataclass(frozen=True)
class Analysis:
    """One metric of one comparison; all in natural logarithms of gains, negative is a loss."""

    metric: Metric
    gains: tuple[float, ...]
    """Of the pairs that are not void, in order of time."""
    pairs: tuple[int, ...]
    """Their indices."""
    mean: Mean
    """Adjusted for order; the decision rests on it."""
    interval: Interval
    unadjusted: Interval
    """Student's, of the plain mean."""
    expanded: Interval
    """The t-expanded percentile bootstrap, of the gains as they are, as the next one."""
    percentile: Interval
    """The plain percentile bootstrap, which covers too little where pairs are few."""
    order_effect: float
    lag_one: float | None
    """Correlation of each pair with the next one, once the effect of order was taken out."""
    decision: Decision
    needed: int | None
    """Pairs in all that would decide what is not decided; None beyond what is affordable."""
    resolvable: float
    """The smallest loss, as a fraction, that so many pairs tell from none 4 times in 5."""


def analyse(comparison: Comparison, pairs: Sequence[Pair]) -> dict[Metric, Analysis]:
    """Analyse every metric that all pairs have which are not void; others have no entry."""
    kept = [pair for pair in pairs if not pair.void]
    orders = {pair.order for pair in kept}
    if len(kept) < LEAST_PAIRS or len(orders) < 2:
        return {}
    found = {}
    for metric in METRICS:
        gains = _gains(metric, kept)
        if gains is not None:
            found[metric] = analyse_gains(comparison, metric, kept, gains)
    return found


def _gains(metric: Metric, pairs: Sequence[Pair]) -> list[float] | None:
    found = []
    for pair in pairs:
        assert pair.a is not None
        assert pair.b is not None
        a, b = pair.a.values[metric], pair.b.values[metric]
        if a is None or b is None:
            return None
        found.append(gain(metric, a, b))
    return found


def analyse_gains(
    comparison: Comparison, metric: Metric, pairs: Sequence[Pair], gains: Sequence[float]
) -> Analysis:
    """Analyse the gains of these pairs.

    Raises:
        ValueError: for fewer than `LEAST_PAIRS`, or where all have the same order.
    """
    values: Floats = np.asarray(gains, dtype=np.float64)
    directions: Floats = np.asarray(signs([pair.order for pair in pairs]), dtype=np.float64)
    confidence = comparison.confidence
    resampled = intervals.bootstrap(values, confidence, comparison.resamples, comparison.seed)
    mean = intervals.adjusted_mean(values, directions)
    limits = margins(comparison.margin, equivalence=comparison.equivalence)
    decision = decide(mean, confidence, limits)
    effect = intervals.order_effect(values, directions)
    undecided = decision == "INCONCLUSIVE"
    return Analysis(
        metric=metric,
        gains=tuple(gains),
        pairs=tuple(pair.index for pair in pairs),
        mean=mean,
        interval=mean.interval(confidence),
        unadjusted=intervals.plain_mean(values).interval(confidence),
        expanded=resampled.expanded,
        percentile=resampled.plain,
        order_effect=effect,
        lag_one=intervals.lag_one(values - effect * directions),
        decision=decision,
        needed=pairs_to_decide(mean, confidence, limits) if undecided else None,
        resolvable=resolvable(mean, len(pairs), confidence),
    )
