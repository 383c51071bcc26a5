"""The order of pairs: balanced in every block, and drawn by seed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tprig.checkers.ab.order import draw_order, draw_pairs, signs


@given(st.integers(2, 30), st.integers(0, 2**32))
def test_every_block_has_both_orders(blocks: int, seed: int) -> None:
    order = draw_order(2 * blocks, seed)
    assert all(set(order[i : i + 2]) == {"ab", "ba"} for i in range(0, 2 * blocks, 2))
    assert sum(signs(order)) == 0


def test_the_seed_decides() -> None:
    drawn = {tuple(draw_order(10, seed)) for seed in range(64)}
    assert draw_order(10, 5) == draw_order(10, 5)
    assert len(drawn) > 16


@pytest.mark.parametrize("pairs", [0, 2, 3, 9])
def test_other_numbers_of_pairs_are_refused(pairs: int) -> None:
    with pytest.raises(ValueError, match="expected an even number of pairs, at least 4"):
        draw_order(pairs, 0)


def test_a_stall_falls_into_one_pair_of_ten() -> None:
    assert len(draw_pairs(10, 10, 3)) == 1
    assert len(draw_pairs(20, 10, 3)) == 2
    assert len(draw_pairs(4, 10, 3)) == 1
