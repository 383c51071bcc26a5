"""Intervals against SciPy, against brute force, and against known truths."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tests.tprig.checkers.ab.simulate import (
    NOISES,
    World,
    adjusted_bounds,
    draw,
    percentile_bounds,
)
from tprig.checkers.ab import intervals
from tprig.checkers.ab.intervals import Floats

MEASUREMENTS = 20_000
VALUES = np.array([-0.02, 0.01, 0.03, -0.005, 0.004, 0.02, -0.01, 0.0, 0.013, 0.021])


def test_the_plain_interval_is_students() -> None:
    ours = intervals.plain_mean(VALUES).interval(0.95)
    theirs = stats.ttest_1samp(VALUES, 0.0).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)


def test_the_adjusted_interval_is_that_of_least_squares() -> None:
    directions = np.array([1, -1, -1, 1, 1, -1, -1, 1, 1, -1], dtype=np.float64)
    design = np.stack([np.ones(10), directions], axis=1)
    solution, squares, *_ = np.linalg.lstsq(design, VALUES)
    error = math.sqrt(squares[0] / 8 * np.linalg.inv(design.T @ design)[0, 0])
    mean = intervals.adjusted_mean(VALUES, directions)
    assert mean.estimate == pytest.approx(solution[0])
    assert mean.error == pytest.approx(error)
    assert mean.freedom == 8
    assert intervals.order_effect(VALUES, directions) == pytest.approx(solution[1])


def test_the_adjustment_bears_with_unequal_numbers_of_orders() -> None:
    directions = np.array([1, -1, -1, 1, 1, -1, 1, 1, 1, 1], dtype=np.float64)
    design = np.stack([np.ones(10), directions], axis=1)
    solution, squares, *_ = np.linalg.lstsq(design, VALUES)
    error = math.sqrt(squares[0] / 8 * np.linalg.inv(design.T @ design)[0, 0])
    mean = intervals.adjusted_mean(VALUES, directions)
    assert (mean.estimate, mean.error) == pytest.approx((solution[0], error))


def test_drift_and_coming_first_leave_the_adjusted_mean_as_it_is() -> None:
    steady, moved = draw(World(), 3, 1), draw(World(drift=5.0, first=-2.0), 3, 1)
    for still, shifted in zip(steady.differences, moved.differences, strict=True):
        one = intervals.adjusted_mean(still, steady.directions)
        other = intervals.adjusted_mean(shifted, moved.directions)
        assert (other.estimate, other.error) == pytest.approx((one.estimate, one.error))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("world", [World(), World(drift=0.7), World(first=1.0)])
def test_the_interval_of_verdicts_covers_what_it_says(noise: str, world: World) -> None:
    drawn = draw(World(noise=noise, drift=world.drift, first=world.first), MEASUREMENTS, 1)
    assert 0.94 <= adjusted_bounds(drawn).coverage(0) <= 0.96


def test_the_simulation_computes_what_the_analysis_does() -> None:
    drawn = draw(World(drift=1.0, truth=0.3), 5, 2)
    bounds = adjusted_bounds(drawn)
    for row, values in enumerate(drawn.differences):
        ours = intervals.adjusted_mean(values, drawn.directions).interval(0.95)
        assert (ours.low, ours.high) == pytest.approx((bounds.low[row], bounds.high[row]))


def test_the_plain_percentile_interval_covers_too_little() -> None:
    drawn = draw(World(), MEASUREMENTS, 1)
    assert percentile_bounds(drawn, 0.025).coverage(0) < 0.92


def _by_force(values: Floats, levels: list[float]) -> list[float]:
    count = values.size
    means = sorted(float(np.mean(each)) for each in itertools.product(values, repeat=count))
    return [means[math.ceil(round(level * len(means), 6)) - 1] for level in levels]


def test_the_enumeration_is_that_of_all_resamples() -> None:
    values = VALUES[:6]
    found = intervals.bootstrap(values, 0.95, 100, 0).plain
    assert [found.low, found.high] == pytest.approx(_by_force(values, [0.025, 0.975]), abs=1e-15)


def test_there_are_as_many_multisets_as_there_must_be() -> None:
    counts, chances = intervals._multisets(10)
    assert counts.shape == (10, 92_378)
    assert (counts.sum(axis=0) == 10).all()
    assert chances.sum() == pytest.approx(1)


def test_the_enumeration_agrees_with_scipys_resampling() -> None:
    ours = intervals.bootstrap(VALUES, 0.95, 100, 0).plain
    theirs = stats.bootstrap(
        (VALUES,), np.mean, n_resamples=200_000, method="percentile", rng=1
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=2e-4)


def test_more_pairs_are_resampled_by_seed() -> None:
    values = np.tile(VALUES, 2)
    one, again = (intervals.bootstrap(values, 0.95, 50_000, 3) for _ in range(2))
    other = intervals.bootstrap(values, 0.95, 50_000, 4)
    assert one == again != other
    assert one.plain.low == pytest.approx(other.plain.low, abs=1e-3)


def test_the_expanded_interval_is_wider() -> None:
    found = intervals.bootstrap(VALUES, 0.95, 100, 0)
    assert found.expanded.low < found.plain.low < found.plain.high < found.expanded.high


def test_quantiles_are_those_of_a_sort() -> None:
    rng = np.random.default_rng(0)
    values, weights = rng.standard_normal(5000), rng.random(5000)
    weights /= weights.sum()
    levels = [0.0, 0.001, 0.3, 0.975, 1.0]
    order = np.argsort(values)
    places = np.searchsorted(np.cumsum(weights[order]), levels)
    expected = values[order][np.minimum(places, 4999)].tolist()
    assert intervals.weighted_quantiles(values, weights, levels) == expected


def test_differences_without_any_spread_have_an_interval_of_one_point() -> None:
    values = np.full(10, 0.5)
    found = intervals.bootstrap(values, 0.95, 100, 0)
    # Ten tenths add up to a rounding error beside the whole.
    assert (found.plain.low, found.plain.high) == pytest.approx((0.5, 0.5), abs=1e-12)
    assert intervals.plain_mean(values).interval(0.95) == intervals.Interval(0.5, 0.5)
    assert intervals.lag_one(values) is None


def test_the_correlation_of_neighbours() -> None:
    assert intervals.lag_one(np.array([1.0, -1.0] * 5)) == pytest.approx(-0.9)
    assert intervals.lag_one(np.arange(10, dtype=np.float64)) == pytest.approx(0.7)


def test_power_is_that_of_scipys_noncentral_t() -> None:
    found = intervals.power(0.02, 0.02, 10, 8, 0.95)
    expected = stats.nct.sf(stats.t.ppf(0.975, 8), 8, math.sqrt(10))
    assert found == pytest.approx(expected, rel=1e-9)
    assert intervals.power(0.02, 0.0, 10, 8, 0.95) == 1.0


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_differences_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match="expected at least 2 differences"):
        intervals.plain_mean(VALUES[:count])


def test_pairs_of_one_order_can_not_be_adjusted() -> None:
    with pytest.raises(ValueError, match="both orders"):
        intervals.adjusted_mean(VALUES, np.ones(10))
