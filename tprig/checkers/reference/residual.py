"""What is left of the target's distribution where the drafter's is taken away."""

from __future__ import annotations

import numpy as np

from tprig.checkers.reference.rows import ROUNDING, Interval, Reals, Scores, sum_error


def log_residual(target: Scores, draft: Scores) -> Scores:
    """log(max(p - q, 0)) of each token, from log p and log q: -inf where q is the larger."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return Scores(
            _log_difference(target.value, target.value - draft.value),
            _log_difference(target.low, target.low - draft.high),
            _log_difference(target.high, target.high - draft.low),
        )


def _log_difference(log_p: Reals, gap: Reals) -> Reals:
    """log(p - p * exp(-gap))."""
    # The float32 ratio exp(-gap) is compared with 1; its rounding is in the bounds of the gap.
    return np.where(gap > 0.0, log_p + np.log(-np.expm1(-np.abs(gap))), -np.inf)


def residual_mass(ratio: Interval, target: Scores, draft: Scores) -> Interval:
    """sum(max(ratio * p - q, 0)), from log p and log q."""
    value = _mass(ratio.value, target.value, draft.value)
    low = _mass(ratio.low, target.low, draft.high)
    high = _mass(ratio.high, target.high, draft.low)
    slack = sum_error(len(target.value)) * high + 2.0 * ROUNDING
    return Interval(value, max(0.0, low - slack), high + slack)


def _mass(ratio: float, log_p: Reals, log_q: Reals) -> float:
    return float(np.maximum(ratio * np.exp(log_p) - np.exp(log_q), 0.0).sum())


def one_hot_residual_mass(ratio: Interval, chance: Interval) -> Interval:
    """The same for a drafter that is sure of one token, which has this chance in the target."""
    return Interval(
        ratio.value * (1.0 - chance.value),
        ratio.low * max(0.0, 1.0 - chance.high - ROUNDING),
        ratio.high * (1.0 - chance.low + ROUNDING),
    )


def block_threshold(ratio: Interval, residual: Interval) -> Interval:
    """The chance h = R / (R + 1 - ratio) to accept a prefix, which grows with both.

    It is 1 where the denominator vanishes.
    """
    low = _threshold(ratio.low, residual.low, rounding=ROUNDING)
    high = _threshold(ratio.high, residual.high, rounding=-ROUNDING)
    return Interval(_threshold(ratio.value, residual.value), low - ROUNDING, high + ROUNDING)


def _threshold(ratio: float, residual: float, rounding: float = 0.0) -> float:
    denominator = residual + 1.0 - ratio + rounding
    return min(1.0, residual / denominator) if denominator > 0.0 else 1.0
