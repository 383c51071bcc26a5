"""Differences are found where they lie, however long the sequences and however many there are."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tprig.checkers.collectives.align import EDITS_MOST, WINDOW, Edit, align, common_prefix
from tprig.checkers.collectives.alphabet import STEP, Alphabet, Ints
from tprig.evidence import Operation

KINDS = 6
LONG = 200_000


def alphabet() -> Alphabet:
    """Signatures 1 to 6, each of a call in a place of its own."""
    made = Alphabet()
    for number in range(KINDS):
        operation = Operation(
            id=number, layer="semantic", kind="all_reduce", backend=None, group="tp", ranks=[0, 1],
            shape=[4], dtype="float32", location=[f"layer{number}"],
        )  # fmt: skip
        assert made.number(operation) == number + 1
    return made


def ints(numbers: Sequence[int]) -> Ints:
    return np.array(numbers, dtype=np.int32)


def found(a: Sequence[int], b: Sequence[int], *, ended: bool = True) -> list[Edit]:
    return list(align(ints(a), ints(b), alphabet(), ended=ended).edits)


def period(steps: int) -> list[int]:
    return [STEP, *range(1, KINDS + 1)] * steps


def test_what_agrees_has_no_differences() -> None:
    assert found(period(9), period(9)) == []
    assert found([], []) == []


@pytest.mark.parametrize("length", [0, 1, 20_000])
def test_the_common_prefix_is_as_long_as_it_is(length: int) -> None:
    a = [1] * length
    assert common_prefix(ints([*a, 2]), ints([*a, 3])) == length
    assert common_prefix(ints(a), ints([*a, 3])) == length


@given(st.integers(1, 300), st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_call_that_lacks_is_found_in_its_place(steps: int, data: st.DataObject) -> None:
    a = period(steps)
    place = data.draw(st.integers(0, len(a) - 1).filter(lambda i: a[i] != STEP))
    b = a[:place] + a[place + 1 :]
    assert found(a, b) == [Edit(place, None, (place, place))]
    assert found(b, a) == [Edit(None, place, (place, place))]


@given(st.integers(2, 200), st.integers(0, 10**9))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_edits_lead_from_one_sequence_to_the_other(steps: int, seed: int) -> None:
    """Whatever was changed: what is told turns the one into the other."""
    rng = random.Random(seed)
    a = period(steps)
    b = list(a)
    for _ in range(rng.randint(1, 12)):
        place = rng.randrange(len(b))
        change = rng.choice(["drop", "add", "swap"])
        if change == "drop":
            del b[place]
        elif change == "add":
            b.insert(place, rng.randint(1, KINDS))
        else:
            b[place] = rng.randint(1, KINDS)
    alignment = align(ints(a), ints(b), alphabet(), ended=True)
    if alignment.whole:
        assert _applied(a, b, alignment.edits) == b


def _applied(a: list[int], b: list[int], edits: Sequence[Edit]) -> list[int]:
    made: list[int] = []
    at = 0
    for edit in edits:
        made += a[at : edit.before[0]]
        at = edit.before[0] + (edit.a is not None)
        made += [] if edit.b is None else [b[edit.b]]
    return made + a[at:]


def test_a_sequence_that_may_go_on_lacks_nothing() -> None:
    assert found(period(3), period(2), ended=False) == []
    assert len(found(period(3), period(2))) == len(period(1))


def test_a_long_sequence_is_compared_in_a_moment_s_memory() -> None:
    """Windows are what is aligned; a table over all of it would have 40,000,000,000 places."""
    a = period(LONG // (KINDS + 1))
    b = list(a)
    del b[LONG // 2 : LONG // 2 + 3]
    edits = found(a, b)
    assert {e.before[0] for e in edits} <= set(range(LONG // 2 - 1, LONG // 2 + 4))
    assert len(edits) == 3


def test_sequences_that_never_run_together_again_are_given_up() -> None:
    rng = random.Random(1)
    a, b = ([rng.randint(lo, lo + 2) for _ in range(20 * WINDOW)] for lo in (1, 4))
    alignment = align(ints(a), ints(b), alphabet(), ended=True)
    assert not alignment.whole
    assert alignment.first is not None
    assert alignment.first.before == (0, 0)


def test_no_more_differences_are_told_than_anybody_reads() -> None:
    a = period(LONG // 100)
    b = [call for place, call in enumerate(a) if place % 29 or call == STEP]
    alignment = align(ints(a), ints(b), alphabet(), ended=True)
    assert EDITS_MOST <= len(alignment.edits) < EDITS_MOST + WINDOW
    assert not alignment.whole
