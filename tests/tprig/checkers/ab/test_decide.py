"""GO, NO-GO and INCONCLUSIVE, and how many pairs would decide."""

from __future__ import annotations

import math

import pytest

from tests.tprig.checkers.ab.simulate import World, adjusted_bounds, draw
from tprig.checkers.ab.decide import (
    Decision,
    decide,
    margins,
    pairs_to_decide,
    pairs_to_resolve,
    resolvable,
)
from tprig.checkers.ab.intervals import Mean, power

LOSS = margins(0.02, equivalence=False)
ALIKE = margins(0.02, equivalence=True)


def mean(estimate: float, deviation: float = 0.01) -> Mean:
    return Mean(estimate, deviation, 8, 10)


@pytest.mark.parametrize(
    ("estimate", "decision"),
    [(0.0, "GO"), (0.1, "GO"), (-0.05, "NO-GO"), (-0.02, "INCONCLUSIVE"), (-0.01, "GO")],
)
def test_a_loss_beyond_the_margin(estimate: float, decision: Decision) -> None:
    assert decide(mean(estimate), 0.95, LOSS) == decision


def test_the_margin_itself_is_no_go_only_beyond_the_interval() -> None:
    half = mean(0).interval(0.95).high
    just = math.log(0.98) - half
    assert decide(mean(just - 1e-9), 0.95, LOSS) == "NO-GO"
    assert decide(mean(just + 1e-9), 0.95, LOSS) == "INCONCLUSIVE"
    assert decide(mean(math.log(0.98) + half + 1e-9), 0.95, LOSS) == "GO"


@pytest.mark.parametrize(
    ("estimate", "decision"),
    [(0.0, "GO"), (0.05, "NO-GO"), (-0.05, "NO-GO"), (0.018, "INCONCLUSIVE")],
)
def test_equivalence_is_broken_in_either_direction(estimate: float, decision: Decision) -> None:
    assert decide(mean(estimate), 0.95, ALIKE) == decision


def test_equivalence_is_tested_one_sided_twice() -> None:
    """At 95% by the 90% interval: what that one holds within the margins is a GO."""
    narrow = mean(0, 0.030).interval(0.90)
    wide = mean(0, 0.030).interval(0.95)
    assert narrow.high < -math.log(0.98) < wide.high
    assert decide(mean(0, 0.030), 0.95, ALIKE) == "GO"


def test_equivalence_is_seldom_found_where_there_is_none() -> None:
    """At most 5% at the margin itself."""
    drawn = draw(World(truth=-math.log(0.98) / 0.015), 20_000, 4)
    bounds = adjusted_bounds(drawn, 0.90)
    limit = -math.log(0.98) / 0.015
    assert float(((bounds.high < limit) & (bounds.low > -limit)).mean()) <= 0.055


def test_a_false_no_go_is_no_likelier_than_it_may_be() -> None:
    limit = math.log(0.98) / 0.02
    harmless = adjusted_bounds(draw(World(drift=1.0), 20_000, 4))
    assert float((harmless.high < limit).mean()) <= 0.025
    marginal = adjusted_bounds(draw(World(truth=limit), 40_000, 4))
    assert float((marginal.high < limit).mean()) == pytest.approx(0.025, abs=0.0025)


@pytest.mark.parametrize("seed", range(10))
def test_a_planted_tenth_is_a_no_go_in_every_seed(seed: int) -> None:
    deviation = 0.02
    drawn = draw(World(truth=-math.log(1.1) / deviation, drift=0.5), 1, seed)
    bounds = adjusted_bounds(drawn)
    assert bounds.high[0] * deviation < math.log(0.98)


def test_an_undecided_mean_says_how_many_pairs_would_decide() -> None:
    needed = pairs_to_decide(mean(0.0, 0.03), 0.95, LOSS)
    assert needed == 20
    effect = -math.log(0.98)
    assert power(effect, 0.03, 20, 18, 0.95) >= 0.8 > power(effect, 0.03, 18, 16, 0.95)


def test_at_the_margin_no_affordable_number_decides() -> None:
    assert pairs_to_decide(mean(math.log(0.98)), 0.95, LOSS) is None


def test_equivalence_needs_more_pairs_in_the_middle_and_none_outside() -> None:
    inside = pairs_to_decide(mean(0.0, 0.03), 0.95, ALIKE)
    outside = pairs_to_decide(mean(0.06, 0.03), 0.95, ALIKE)
    assert inside is not None
    assert outside is not None
    assert inside > outside


def test_what_can_be_resolved_is_told_from_none_four_times_in_five() -> None:
    loss = resolvable(mean(0.0, 0.02), 10, 0.95)
    assert power(-math.log1p(-loss), 0.02, 10, 8, 0.95) == pytest.approx(0.8, abs=1e-6)
    assert pairs_to_resolve(loss + 1e-9, mean(0.0, 0.02), 0.95) == 10
    assert resolvable(mean(0.0, 0.0), 10, 0.95) == 0.0
