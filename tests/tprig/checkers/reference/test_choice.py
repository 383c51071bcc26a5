from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from tprig.checkers.reference.choice import Choice, gumbel_max
from tprig.checkers.reference.rows import Row

INF = math.inf


def choice(values: Sequence[float], error: float = 0.0) -> Choice:
    value = np.array(values, dtype=np.float64)
    return Choice(Row.of(value, np.full(len(value), error)).scores())


def test_the_largest_wins() -> None:
    found = choice([1.0, 3.0, 2.0])
    assert (found.winner, found.ambiguous, found.allows(1), found.allows(2)) == (
        1,
        False,
        True,
        False,
    )
    assert (found.margin(2), found.margin(1)) == (1.0, -1.0)


def test_of_exact_ties_the_first_wins() -> None:
    found = choice([1.0, 3.0, 3.0], error=1e-6)
    assert (found.winner, found.ambiguous, found.allows(2)) == (1, False, False)


def test_near_ties_are_left_open() -> None:
    found = choice([1.0, 3.0, 3.0 - 1e-6], error=1e-6)
    assert (found.winner, found.ambiguous, found.allows(2), found.allows(0)) == (
        1,
        True,
        True,
        False,
    )
    assert found.margin(2) == pytest.approx(1e-6)
    assert found.band(2) == pytest.approx(2e-6)


def test_where_nothing_can_be_drawn_token_0_is() -> None:
    found = choice([-INF, -INF])
    assert (found.winner, found.ambiguous, found.allows(0), found.allows(1)) == (
        0,
        False,
        True,
        False,
    )


@pytest.mark.parametrize("token", [-1, 2, 10**9])
def test_tokens_outside_the_vocabulary_never_win(token: int) -> None:
    found = choice([1.0, 2.0])
    assert not found.allows(token)
    assert found.margin(token) == INF


def test_gumbel_noise_draws_from_the_distribution() -> None:
    chances = np.array([0.6, 0.25, 0.1, 0.05, 0.0])
    with np.errstate(divide="ignore"):
        scores = Row.of(np.log(chances), np.zeros(5)).scores()
    drawn = [gumbel_max(scores, seed, 33, fp64=False).winner for seed in range(4000)]
    frequencies = np.bincount(drawn, minlength=5) / len(drawn)
    assert frequencies[4] == 0.0
    # Four standard deviations.
    assert (np.abs(frequencies - chances) <= 4.0 * np.sqrt(chances / len(drawn))).all()
