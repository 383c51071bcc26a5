"""Findings are short enough to read and exact enough to trust."""

from __future__ import annotations

import pytest

from tprig.checkers.wording import counted, difference, tokens


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([], "[]"),
        ([3, 1], "[3, 1]"),
        (list(range(8)), "[0, 1, 2, 3, 4, 5, 6, 7]"),
        (list(range(50)), "[0, 1, 2, 3, 4, 5, 6, 7, ... 50 in all]"),
    ],
)
def test_token_ids_are_abbreviated(ids: list[int], told: str) -> None:
    assert tokens(ids) == told


@pytest.mark.parametrize(
    ("expected", "found", "told"),
    [
        ({1, 2}, {1}, "lacks [2]"),
        ({1}, {3, 1, 2}, "has [2, 3] too many"),
        ({1, 2}, {2, 3}, "lacks [1], has [3] too many"),
        ({1}, {1}, "holds the same tokens"),
    ],
)
def test_differences_are_told_from_both_sides(
    expected: set[int], found: set[int], told: str
) -> None:
    assert difference(expected, found) == told


def test_counts_have_their_plural() -> None:
    assert [counted(n, "row") for n in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert counted(2, "process", "processes") == "2 processes"
