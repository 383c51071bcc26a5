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
    assert {name: (f.process, f.anomaly, f.lethal, f.suite) for name, f in FAULTS.items()} == {
        name: (f.process, f.anomaly, f.lethal, f.suite) for name, f in told.items()
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


# --- other rows of a mask ----------------------------------------------------------------------


def test_first_rows_of_neighbours_change_places(foreign: Foreign) -> None:
    answer = foreign("faults", "strike", fault="mask-rows-swapped", calls=[
        call([[A, B], [A], [D, C]], [[1, 2], [1], [8, 7]]),
    ])  # fmt: skip
    assert answer["supports"] == [[A, B, D, A, C]]
    assert told(answer)[1:] == [("struck", "batch rows 1 and 2, slot 0: supports swapped")]


def test_an_accepted_token_is_left_with_the_draft_s_support(foreign: Foreign) -> None:
    """The last token was not drafted, and a support of one token would stay what it is."""
    answer = foreign("faults", "strike", fault="mask-of-draft", calls=[
        call([[A], [C, B], [B, A]], [[1], [7, 4], [4, 1]]),
    ])  # fmt: skip
    assert answer["supports"] == [[A, C, B, [4], A]]
    assert told(answer)[1:] == [("struck", "batch row 2, slot 0: the draft 4 alone")]


def test_the_bits_of_a_wide_row_are_turned_round(foreign: Foreign) -> None:
    """The emitted token stays in the support: it would be another fault without."""
    wide = [0, 1, 2, 3, 8, 9, 15]
    answer = foreign("faults", "strike", fault="mask-bits-reversed", calls=[
        call([[A], [wide]], [[1], [15]]),
    ])  # fmt: skip
    assert answer["supports"] == [[A, [4, 5, 6, 7, 8, 14, 15]]]
    assert told(answer)[1:] == [
        ("struck", "batch row 1, slot 0: the bits of each byte turned round")
    ]


def test_a_count_of_the_step_before_is_kept(foreign: Foreign) -> None:
    answer = foreign("faults", "strike", fault="mask-counts-stale", calls=[
        call([[A], [B]], [[1], [2]]),
        call([[B], [A]], [[2], [1]]),
        call([[A], [A]], [[1], [1]]),
    ])  # fmt: skip
    assert answer["supports"] == [[A, B], [[2, 3, 4], A], [A, A]]
    assert told(answer)[1:] == [
        ("struck", "batch row 0, slot 0: as many tokens as in the step before")
    ]


def test_a_longer_count_brings_back_what_was_there(foreign: Foreign) -> None:
    answer = foreign("faults", "strike", fault="mask-counts-stale", calls=[
        call([[B]], [[2]]),
        call([[A]], [[1]]),
    ])  # fmt: skip
    assert answer["supports"] == [[B], [[1, 2, 3, 5]]]


def test_a_row_that_is_not_active_moves_the_next_request_s_down(foreign: Foreign) -> None:
    answer = foreign("faults", "flatten", requests=[[A, B], [C], [D, A]])
    assert answer["slices"] == [[A, B], [NO_SLOT], [C, D]]
    assert told(answer)[1:] == [("struck", "batch row 0: slot 2 handed on")]


# --- verification ------------------------------------------------------------------------------

FLAT = [0.0] * 8
"""Logits of tokens that are all alike."""
IMPOSSIBLE = [None, *FLAT[1:]]
"""Those of a row in which token 0 cannot be."""
SURE = [*FLAT[1:], 50.0]
"""Those of a row in which token 7 is certain."""
LIKELY = [0.0, 2.0, *FLAT[2:]]
"""Those of a row in which token 1 is as likely as all others together."""
VERIFICATION_FAULTS = [
    name
    for name, fault in FAULTS.items()
    if fault.anomaly == "oracle.tokens" and fault.draft == "greedy"
]


def verification(seed: int, drafts: tuple[int, int] = (0, 3)) -> dict[str, Any]:
    """Two requests with two drafts; those of the second are accepted for certain."""
    first = IMPOSSIBLE if drafts[0] == 0 else LIKELY
    target = [first, FLAT, FLAT, SURE, SURE, FLAT]
    return {"target": target, "drafts": [list(drafts), [7, 7]], "draft": None, "seed": seed}


@pytest.mark.parametrize("fault", VERIFICATION_FAULTS)
def test_one_request_draws_another_token_once(foreign: Foreign, fault: str) -> None:
    """As many drafts are accepted, and nothing else of the calls changes."""
    calls = [verification(seed, (1, 3)) for seed in range(8)]
    answer = foreign("faults", "verify", fault=fault, calls=calls)
    assert answer["restored"]
    pairs = zip(answer["sampled"], answer["honest"], strict=True)
    changed = [
        (now, was) for sampled, honest in pairs for now, was in zip(sampled, honest, strict=True)
        if now != was
    ]  # fmt: skip
    assert len(changed) == 1
    ((now, was),) = changed
    assert len(now) == len(was)
    assert now[:-1] == was[:-1]
    assert [event for event, _ in told(answer)] == ["armed", "struck"]
    assert told(answer)[1][1].endswith(f"sampled {now} instead of {was}")


def test_a_draft_that_cannot_be_is_accepted(foreign: Foreign) -> None:
    answer = foreign("faults", "verify", fault="zero-probability-accepted",
                     calls=[verification(seed) for seed in range(3)])  # fmt: skip
    first, honest = answer["sampled"][0][0], answer["honest"][0][0]
    assert honest[0] != 0
    assert first[0] == 0
    assert answer["sampled"][1:] == answer["honest"][1:]


def test_a_draft_that_was_refused_by_its_draw_is_accepted(foreign: Foreign) -> None:
    likely = [verification(seed, (1, 3)) for seed in range(6)]
    answer = foreign("faults", "verify", fault="accepted-too-often", calls=likely)
    pairs = list(zip(answer["sampled"], answer["honest"], strict=True))
    ((now, was),) = [
        (now, was) for sampled, honest in pairs for now, was in zip(sampled, honest, strict=True)
        if now != was
    ]  # fmt: skip
    assert len(now) > len(was)
    assert now[: len(was) - 1] == was[:-1]
