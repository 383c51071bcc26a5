"""Planted faults, on tensors of vLLM's own types: each alters one thing once, and says so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tprig_inject.faults import FAULTS

from tests.tprig.inject.foreign.client import Foreign
from tprig import evidence
from tprig.checkers.anomalies import ANOMALIES
from tprig.injected import injected

A, B, C, D = [1, 2, 3], [2, 3, 4, 5], [7], [8, 30]
NO_SLOT: list[int] = []


def call(supports: list[list[list[int]]], tokens: list[list[int]]) -> dict[str, Any]:
    return {"supports": supports, "tokens": tokens}


def told(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """What the fault wrote, which must be records of the schema."""
    records = [msgspec.convert(record, evidence.RankRecord) for record in answer["records"]]
    return [(r.event, r.detail) for r in records if isinstance(r, evidence.Fault)]


# --- the registry ------------------------------------------------------------------------------


def test_registry_is_what_suites_are_told() -> None:
    told = injected().faults
    assert {name: (f.process, f.anomaly, f.lethal, f.timed) for name, f in FAULTS.items()} == {
        name: (f.process, f.anomaly, f.lethal, f.timed) for name, f in told.items()
    }


def test_every_fault_names_an_anomaly_of_the_table() -> None:
    assert {fault.anomaly for fault in FAULTS.values()} <= set(ANOMALIES)
    assert all(fault.resembles for fault in FAULTS.values())


# --- mask-row-shifted --------------------------------------------------------------------------


def test_a_row_becomes_the_row_before_it(foreign: Foreign) -> None:
    answer = foreign("faults", "strike", fault="mask-row-shifted", calls=[
        call([[A, B, C], [D]], [[1, 2, 7], [8]]),
        call([[A, B], [D]], [[1, 2], [8]]),
    ])  # fmt: skip
    assert answer["supports"] == [[A, A, C, D], [A, B, D]]
    assert told(answer) == [("armed", ""), ("struck", "batch row 0, slot 1: support of slot 0")]
    assert answer["restored"]


def test_rows_that_are_equal_are_passed_over(foreign: Foreign) -> None:
    """Shifting them would change nothing, and the fault would count as undetected."""
    answer = foreign("faults", "strike", fault="mask-row-shifted", calls=[
        call([[A, A], [B, B, B]], [[1, 2], [2, 3, 4]]),
        call([[A], [B, B, D]], [[1], [2, 3, 8]]),
    ])  # fmt: skip
    assert answer["supports"] == [[A, A, B, B, B], [A, B, B, B]]
    assert told(answer)[1:] == [("struck", "batch row 1, slot 2: support of slot 1")]


def test_only_rows_of_one_request_that_were_emitted_are_shifted(foreign: Foreign) -> None:
    answer = foreign("faults", "strike", fault="mask-row-shifted", calls=[
        call([[A, B], [C], [], [D, NO_SLOT]], [[1], [7], [], [8]]),
    ])  # fmt: skip
    assert answer["supports"] == [[A, C, D]]
    assert told(answer) == [("armed", "")]


def test_a_wide_row_is_shifted_with_its_bits(foreign: Foreign) -> None:
    wide, wider = list(range(10, 20)), list(range(10, 25))
    answer = foreign("faults", "strike", fault="mask-row-shifted", calls=[
        call([[wide, wider]], [[10, 11]]),
    ])  # fmt: skip
    assert answer["supports"] == [[wide, wide]]


# --- mask-token-cut ----------------------------------------------------------------------------


def test_the_emitted_token_is_cut_out_of_its_support(foreign: Foreign) -> None:
    answer = foreign("faults", "strike", fault="mask-token-cut", calls=[
        call([[B, A], [D]], [[4, 1], [8]]),
        call([[B]], [[4]]),
    ])  # fmt: skip
    assert answer["supports"] == [[[2, 3, 5], A, D], [B]]
    assert told(answer) == [("armed", ""), ("struck", "batch row 0, slot 0: token 4 cut")]
    assert answer["restored"]


@pytest.mark.parametrize("token", [0, 7, 8, 15, 39])
def test_every_way_to_read_the_mask_lacks_the_token(foreign: Foreign, token: int) -> None:
    """Ids, count and bits agree, wherever in its byte the token's bit is."""
    support = [0, 7, 8, 15, 39]
    rows = foreign("masks", "cut", support=support, token=token)
    left = [other for other in support if other != token]
    assert rows == {"token_ids": left, "count": 4, "bits": left}


def test_a_support_of_one_token_and_a_wide_one_are_left_alone(foreign: Foreign) -> None:
    """An empty support would be another fault, and a wide one has no ids to be cut from."""
    wide = list(range(12))
    answer = foreign("faults", "strike", fault="mask-token-cut", calls=[
        call([[C], [], [wide]], [[7], [], [3]]),
        call([[C], [D]], [[7], [30]]),
    ])  # fmt: skip
    assert answer["supports"] == [[C, wide], [C, [8]]]
    assert told(answer)[1:] == [("struck", "batch row 1, slot 0: token 30 cut")]


@pytest.mark.parametrize("fault", ["mask-row-shifted", "mask-token-cut"])
def test_an_output_without_masks_is_left_alone(foreign: Foreign, fault: str) -> None:
    answer = foreign(
        "faults", "strike", fault=fault, calls=[{"supports": None, "tokens": [[1, 2]]}]
    )
    assert told(answer) == [("armed", "")]


# --- mask-lost ---------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", [2, 3, 4])
def test_the_first_of_several_masks_is_lost(foreign: Foreign, positions: int) -> None:
    supports = [A, B, C, D][:positions]
    answer = foreign("faults", "lose", requests=[supports, [D, A]])
    assert answer["slices"] == [supports[1:], [D, A]]
    assert told(answer) == [
        ("armed", ""),
        ("struck", f"batch row 0: first of {positions} masks"),
    ]
    assert answer["restored"]


def test_a_single_mask_is_not_lost(foreign: Foreign) -> None:
    """The output would then have no masks at all, which is another fault."""
    answer = foreign("faults", "lose", requests=[[A], [B, C]])
    assert answer["slices"] == [[A], [C]]
    assert told(answer)[1:] == [("struck", "batch row 1: first of 2 masks")]
