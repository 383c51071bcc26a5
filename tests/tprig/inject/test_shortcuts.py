"""With shortcuts, each operation gives what Triton's own way gives: bytes, types and errors."""

from __future__ import annotations

import pytest

from tests.tprig.inject.foreign.client import Foreign

GROUPS = {
    "pairs": 0,
    "numbers": 0,
    "broadcasts": 0,
    "casts": 0,
    # Scans and reductions take functions, and some builtins give more than one tensor.
    "unary": 20,
    "made": 0,
    # The scalar loads that ask whether a mask or a default is 0.
    "memory": 156,
}
"""For each group, how many kinds of calls at most may go Triton's own way."""


@pytest.mark.parametrize("group", GROUPS)
def test_operations_give_the_same(foreign: Foreign, group: str) -> None:
    without = foreign("operations", "results", group=group, supplied=False)
    supplied = foreign("operations", "results", group=group, supplied=True)
    assert supplied["results"] == without["results"]
    assert len(without["results"]) > 200
    assert supplied["own way"] <= GROUPS[group]
    assert supplied["planned"] > 100
    assert without["planned"] == 0


def test_errors_are_the_same(foreign: Foreign) -> None:
    told = foreign("operations", "results", group="numbers", supplied=True)["results"]
    negative = told["uint8 1d add -1, round 1"]
    assert negative.startswith("ValueError: Cannot perform a binary operation between an unsigned")
    assert told["int1 1d add 18446744073709551616, round 1"].startswith("ValueError: Nonrepr")


@pytest.mark.parametrize("what", ["signed zeros", "aliases", "kinds of numbers", "own attributes"])
def test_plans_are_told_apart(foreign: Foreign, what: str) -> None:
    """What was traced for one call is not done for another that only looks alike."""
    expected = foreign("operations", "apart", supplied=False)[what]
    assert foreign("operations", "apart", supplied=True)[what] == expected


def test_values_that_decide_are_looked_at_each_time(foreign: Foreign) -> None:
    without, supplied = (
        foreign("operations", "decided_by_values", supplied=supplied) for supplied in (False, True)
    )
    assert supplied == without == [5, -1, 5, 0]


def test_plans_are_forgotten_when_their_constants_take_too_much(foreign: Foreign) -> None:
    told = foreign("operations", "forgotten", constant_bytes_most=1000)
    assert told["most"] <= 1000 + told["each"]
    assert told["same"]


def test_another_triton_is_left_as_it_is(foreign: Foreign) -> None:
    """A name that has moved is noted, and kernels run without what rests on it."""
    told = foreign("operations", "moved")
    assert len(told["notes"]) == 1
    assert "InterpreterBuilder.cast_impl(self, src, dst_type)" in told["notes"][0]
    assert "no InterpreterBuilder.cast_impl" in told["notes"][0]
    assert told["installed"] is False


def test_a_builder_that_computes_otherwise_is_believed(foreign: Foreign) -> None:
    """Another Triton may do more in a method than we know: its own result counts."""
    assert foreign("operations", "otherwise") == [[2, 4, 6], [2, 4, 6]]


@pytest.mark.parametrize("seed", [0, 1])
def test_kernels_of_vllm_give_the_same_bytes(foreign: Foreign, seed: int) -> None:
    without, shortened = (
        foreign("kernels", "verified", seed=seed, shortcuts=shortcuts)
        for shortcuts in (False, True)
    )
    assert shortened == without
    assert all(without["greedy"] + without["probabilistic"])
