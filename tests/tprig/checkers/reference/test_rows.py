from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from tprig.checkers.reference.rows import Interval, Row

SEEDS = st.integers(0, 2**32 - 1)


def row(values: list[float], error: float = 0.0) -> Row:
    value = np.array(values, dtype=np.float64)
    return Row.of(value, np.full(len(value), error))


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, size=st.integers(1, 3000), scale=st.sampled_from([0.1, 3.0, 300.0]))
def test_float32_log_probabilities_lie_within_their_bounds(
    seed: int, size: int, scale: float
) -> None:
    logits = np.random.default_rng(seed).normal(scale=scale, size=size).astype(np.float32)
    mass = Row.of(logits.astype(np.float64), np.zeros(size)).log_mass
    assert mass.interval.value == pytest.approx(logsumexp(logits.astype(np.float64)), abs=1e-9)
    top = logits.max()
    # One addition after the other, which is the worst order there is.
    total = np.float32(0.0)
    for weight in np.exp(logits - top):
        total += weight
    for token in range(min(size, 50)):
        bounds = mass.logprob(Interval.around(float(logits[token]), 0.0))
        for found in (logits[token] - top - np.log(total), logits[token] - (top + np.log(total))):
            assert bounds.low <= float(found) <= bounds.high


def test_the_mass_of_nothing_is_not_a_number() -> None:
    assert math.isnan(row([-math.inf, -math.inf]).log_mass.interval.value)


def test_tokens_that_may_be_masked_widen_the_mass() -> None:
    certain = row([0.0, 0.0])
    open_ = Row(certain.value, certain.error, certain.kept, np.array([False, True]))
    bounds = open_.log_mass.interval
    assert bounds.low == pytest.approx(0.0, abs=1e-5)
    assert (bounds.value, bounds.high) == pytest.approx((math.log(2), math.log(2)), abs=1e-5)


def test_what_a_row_does_not_admit_does_not_settle_it() -> None:
    certain = row([0.0, 1.0, 2.0])
    open_ = Row(certain.value, certain.error, certain.kept, np.array([True, False, False]))
    without_first, without_last = np.array([False, True, True]), np.array([True, True, False])
    assert open_.settled(without_first).kept.tolist() == [False, True, True]
    assert not open_.settled(without_first).maybe.any()
    assert open_.settled(without_last) is open_


@given(a=st.floats(-1e6, 1e6), b=st.floats(-1e6, 1e6), e=st.floats(0.0, 1.0))
def test_differences_of_intervals_hold_all_differences(a: float, b: float, e: float) -> None:
    difference = Interval.around(a, e).minus(Interval.around(b, e), error=1e-9)
    assert difference.low <= (a - e) - (b + e)
    assert (a + e) - (b - e) <= difference.high
