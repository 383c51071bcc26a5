from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tprig.checkers.reference import TieRule
from tprig.checkers.reference.filters import apply_min_p, apply_top_k, apply_top_p
from tprig.checkers.reference.rows import Row

INF = float("inf")
KEEP_ALL, EXACTLY_K = TieRule.KEEP_ALL, TieRule.EXACTLY_K


def row(values: npt.ArrayLike, error: float = 0.0) -> Row:
    value = np.array(values, dtype=np.float64)
    return Row.of(value, np.full(len(value), error))


def kept(filtered: Row) -> list[int]:
    return [int(token) for token in np.flatnonzero(filtered.kept)]


def maybe(filtered: Row) -> list[int]:
    return [int(token) for token in np.flatnonzero(filtered.maybe)]


@pytest.mark.parametrize(("rule", "expected"), [(KEEP_ALL, [0, 1, 3, 4]), (EXACTLY_K, [0, 1, 3])])
def test_ties_at_the_edge_of_top_k(rule: TieRule, expected: list[int]) -> None:
    filtered = apply_top_k(row([3.0, 2.0, 1.0, 2.0, 2.0], error=1e-6), 3, rule)
    assert (kept(filtered), maybe(filtered)) == (expected, [])


def test_ties_stay_open_where_top_p_follows_in_the_same_kernel() -> None:
    filtered = apply_top_k(row([3.0, 2.0, 1.0, 2.0, 2.0]), 3, EXACTLY_K, settles=False)
    assert (kept(filtered), maybe(filtered)) == ([0, 1, 3], [1, 3, 4])


@pytest.mark.parametrize("rule", TieRule)
def test_near_ties_at_the_edge_are_left_open(rule: TieRule) -> None:
    filtered = apply_top_k(row([3.0, 2.0, 2.0 - 1e-7, 1.0], error=1e-6), 2, rule)
    assert (kept(filtered), maybe(filtered)) == ([0, 1], [1, 2])


def test_equal_logits_that_were_rounded_otherwise_are_no_exact_ties() -> None:
    value, error = np.array([3.0, 2.0, 2.0, 1.0]), np.array([0.0, 0.0, 1e-6, 0.0])
    filtered = apply_top_k(Row.of(value, error), 2, KEEP_ALL)
    assert (kept(filtered), maybe(filtered)) == ([0, 1, 2], [1, 2])


def test_near_ties_that_all_have_room_are_kept() -> None:
    filtered = apply_top_k(row([3.0, 2.0, 2.0 - 1e-7, 1.0], error=1e-6), 3, KEEP_ALL)
    assert (kept(filtered), maybe(filtered)) == ([0, 1, 2], [])


def test_near_ties_of_exact_logits_are_no_ties() -> None:
    filtered = apply_top_k(row([3.0, 2.0, 2.0 - 1e-7, 1.0]), 2, KEEP_ALL)
    assert (kept(filtered), maybe(filtered)) == ([0, 1], [])


@pytest.mark.parametrize("top_k", [2, 3, 7])
def test_masked_tokens_do_not_count(top_k: int) -> None:
    filtered = apply_top_k(row([-INF, 1.0, -INF, 0.0]), top_k, KEEP_ALL)
    assert kept(filtered) == [1, 3]


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    assert kept(apply_min_p(row(logits), 0.2)) == [0, 1, 2]
    near = apply_min_p(row(logits, error=1e-6), 0.3 * 0.999_999_99)
    assert (kept(near), maybe(near)) == ([0, 1, 2], [2])


def test_min_p_of_one_keeps_the_ties_of_the_likeliest() -> None:
    filtered = apply_min_p(row([2.0, 1.0, 2.0], error=1e-6), 1.0)
    assert (kept(filtered), maybe(filtered)) == ([0, 2], [])


@pytest.mark.parametrize("rule", TieRule)
@pytest.mark.parametrize(
    ("top_p", "expected"), [(0.4, [1]), (0.7, [1, 0]), (0.85, [1, 0, 3]), (0.99, [1, 0, 3, 2])]
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(
    rule: TieRule, top_p: float, expected: list[int]
) -> None:
    filtered = apply_top_p(row(np.log([0.3, 0.5, 0.05, 0.15])), top_p, rule)
    assert (kept(filtered), maybe(filtered)) == (sorted(expected), [])


def test_top_p_on_the_edge_is_left_open() -> None:
    filtered = apply_top_p(row(np.log([0.3, 0.5, 0.05, 0.15])), 0.8 + 1e-9, KEEP_ALL)
    assert maybe(filtered) == [3]


def test_where_one_of_ties_is_left_open_all_of_them_are() -> None:
    filtered = apply_top_p(row(np.log([0.4, 0.2, 0.2, 0.2])), 0.8 + 1e-9, KEEP_ALL)
    assert (kept(filtered), maybe(filtered)) == ([0, 1, 2, 3], [1, 2, 3])


def test_of_ties_at_the_edge_of_top_p_any_may_go_but_not_more() -> None:
    filtered = apply_top_p(row(np.log([0.4, 0.15, 0.15, 0.15, 0.15])), 0.6, KEEP_ALL)
    assert maybe(filtered) == [1, 2, 3, 4]
    for pair in ([1, 2], [3, 4]):
        some = np.zeros(5, dtype=np.bool_)
        some[[0, *pair]] = True
        assert filtered.admits(some)
        assert kept(filtered.settled(some)) == [0, *pair]
    some[1] = True
    assert not filtered.admits(some)


def test_of_tokens_that_float32_may_not_tell_apart_any_may_go_as_well() -> None:
    """Divided by a high temperature, the smallest numbers become 0 as others are."""
    value = np.array([3.0, 1e-49, 0.0, 1e-49, -3.0])
    filtered = apply_top_p(Row.of(value, np.array([0.0, *[1e-38] * 3, 0.0])), 0.94, KEEP_ALL)
    assert (kept(filtered), maybe(filtered)) == ([0, 1, 3], [1, 2, 3])
    for pair in ([1, 2], [2, 3]):
        some = np.zeros(5, dtype=np.bool_)
        some[[0, *pair]] = True
        assert filtered.admits(some)
    some[1] = True
    assert not filtered.admits(some)


def test_the_likeliest_is_always_kept() -> None:
    assert kept(apply_top_p(row([1.0, 5.0, 2.0]), 1e-9, KEEP_ALL)) == [1]


def test_top_p_of_one_drops_what_underflows_on_the_pytorch_path_alone() -> None:
    """Such a row goes through the filter when another row of the batch has a smaller top_p."""
    logits = row([0.0, -50.0, -95.0, -120.0])
    assert kept(apply_top_p(logits, 1.0, EXACTLY_K)) == [0, 1, 2, 3]
    filtered = apply_top_p(logits, 1.0, KEEP_ALL)
    assert (kept(filtered), maybe(filtered)) == ([0, 1, 2], [2])


@pytest.mark.parametrize("rule", TieRule)
def test_an_empty_row_stays_empty(rule: TieRule) -> None:
    empty = row([-INF] * 4)
    filtered = apply_top_p(apply_top_k(apply_min_p(empty, 0.5), 2, rule), 0.5, rule)
    assert (kept(filtered), maybe(filtered)) == ([], [])


@given(
    values=st.lists(st.integers(-20, 20).map(lambda n: n / 4.0), min_size=1, max_size=30),
    top_k=st.integers(1, 31),
)
def test_float32_agrees_wherever_nothing_is_left_open(values: list[float], top_k: int) -> None:
    filtered = apply_top_k(row(values), top_k, KEEP_ALL)
    edge = sorted(values, reverse=True)[min(top_k, len(values)) - 1]
    assert kept(filtered) == [n for n, value in enumerate(values) if value >= edge]
    assert maybe(filtered) == []
