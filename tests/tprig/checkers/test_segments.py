"""Sums over many short lists at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tprig.checkers import segments
from tprig.evidence import Number

NUMBERS = st.lists(st.integers(-1000, 1000).map(float), max_size=5)


@given(st.lists(NUMBERS, max_size=8))
def test_each_segment_has_its_own_sum(lists: list[list[Number]]) -> None:
    flat, lengths = segments.flatten(lists)
    assert flat.shape == (sum(map(len, lists)),)
    assert segments.sums(flat, lengths).tolist() == [sum(map(float, x)) for x in lists]


def test_an_odd_segment_does_not_spoil_the_others() -> None:
    flat, lengths = segments.flatten([[1.0], ["nan"], [2.0, 3.0], ["-inf"], []])
    found = segments.sums(flat, lengths)
    assert np.isnan(found[1])
    assert found[[0, 2, 3, 4]].tolist() == [1.0, 5.0, -np.inf, 0.0]
