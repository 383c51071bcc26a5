"""What Triton's interpreter lacks for vLLM's kernels is there, and no result is another one."""

from __future__ import annotations

import math

import pytest

from tests.tprig.inject.foreign.client import Foreign

LOADED = [0, -1, 2, -1, -1, 5, 6, -1]


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "int64"])
def test_loads_take_masks_of_any_integer_type(foreign: Foreign, dtype: str) -> None:
    without = foreign("kernels", "masked_load", dtype=dtype, supplied=False)
    assert "mask has unsupported dtype" in without, "the interpreter can do it by itself now"
    assert foreign("kernels", "masked_load", dtype=dtype, supplied=True) == LOADED


def test_masks_of_bools_are_as_they_were(foreign: Foreign) -> None:
    without, supplied = (
        foreign("kernels", "masked_load", dtype="bool", supplied=supplied)
        for supplied in (False, True)
    )
    assert without == supplied == LOADED


def test_stores_take_masks_of_integers(foreign: Foreign) -> None:
    assert "unsupported dtype" in foreign("kernels", "masked_store", supplied=False)
    assert foreign("kernels", "masked_store", supplied=True) == [1, 0, 1]


def test_log1p_is_supplied(foreign: Foreign) -> None:
    values = [0.0, -0.5, 1e-300, -1.0 + 2**-53, 1e10, -0.25, 3.0, 0.125]
    assert isinstance(foreign("kernels", "log1p", values=values, supplied=False), str)
    found = foreign("kernels", "log1p", values=values, supplied=True)
    assert found == pytest.approx([math.log1p(v) for v in values], rel=1e-15)


def test_the_language_is_patched_once(foreign: Foreign) -> None:
    """Walking its members took most of each launch."""
    before = foreign("kernels", "language_patches", supplied=False)
    after = foreign("kernels", "language_patches", supplied=True)
    # Three launches, each with a call of another device function.
    assert before == 6 * after
    assert after > 0


def test_kernels_work_while_the_language_stays_patched(foreign: Foreign) -> None:
    """The second program of the grid writes last."""
    expected = [2 * offset + 1 for offset in range(8)]
    assert foreign("kernels", "calls_another") == [expected] * 3


def test_kernels_of_vllm_give_the_same_results(foreign: Foreign) -> None:
    """The Gumbel noise comes from hashes whose products overflow."""
    without, supplied = (
        foreign("kernels", "sampled", supplied=supplied) for supplied in (False, True)
    )
    assert without == supplied
    assert supplied["supports"] == supplied["expected"]
    chosen = zip(supplied["chosen"], supplied["supports"], strict=True)
    assert all(token in support for token, support in chosen)


def test_needless_checks_are_off_and_nothing_else(foreign: Foreign) -> None:
    told = foreign("kernels", "options")
    before, after = told["before"], told["after"]
    assert (before["sanitize_overflow"], after["sanitize_overflow"]) == (True, False)
    assert before["others"] == after["others"]
    assert after["top-p kernel"] is False
