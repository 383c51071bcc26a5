"""Replay off against replay on: equal bit for bit, or located where they part."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from tests.fakes import histories
from tests.tprig.checkers import edits
from tests.tprig.checkers.examples import HALF, OFF, ON, QUARTER
from tprig.checkers.checker import Judgement
from tprig.checkers.outputs import OUTPUTS
from tprig.evidence import Finite, Number, Refusal
from tprig.history import RunHistory

CLAIM = histories.claim("outputs", {"off": "off", "on": "on"})


def judged(on: RunHistory, off: RunHistory = OFF) -> Judgement:
    return OUTPUTS.function(CLAIM, {"off": off, "on": on})


def anomalies(on: RunHistory, off: RunHistory = OFF) -> list[tuple[str, int | None]]:
    return [(found.anomaly, found.where.row) for found in judged(on, off).findings]


def both(request: str, position: int, **changes: object) -> tuple[RunHistory, RunHistory]:
    """The same change in both runs: they agree, and may contradict themselves."""
    on = edits.edit_row(ON, request, position, **changes)
    return on, edits.edit_row(OFF, request, position, **changes)


def test_equal_runs_are_measured() -> None:
    assert judged(ON) == Judgement({"rows": 4})


def test_rows_after_a_different_token_are_another_text() -> None:
    run = edits.edit_row(ON, "a", 1, token_id=9)
    run = edits.edit_row(run, "a", 3, token_id=8, rank=3)
    judgement = judged(run)
    assert [(f.anomaly, f.where.row) for f in judgement.findings] == [("output.tokens", 1)]
    assert judgement.measured["rows"] == 2


def test_one_anomaly_is_told_once_per_request_where_it_begins() -> None:
    run = edits.edit_row(ON, "a", 1, rank=2)
    run = edits.edit_row(run, "a", 3, rank=2)
    (finding,) = judged(run).findings
    assert finding.where.row == 1
    assert "expected the rank of token 5 to be 3 as with replay off, found 2" in finding.message


def test_a_difference_before_the_parting_is_told_too() -> None:
    run = edits.edit_row(ON, "a", 1, rank=2)
    run = edits.edit_row(run, "a", 3, token_id=8)
    assert anomalies(run) == [("output.ranks", 1), ("output.tokens", 3)]


@pytest.mark.parametrize("logprob", [math.nextafter(QUARTER, 0), "-inf", "nan", None])
def test_a_selected_logprob_is_compared_exactly(logprob: Number | None) -> None:
    run = edits.edit_row(ON, "a", 1, logprob=logprob, finite=None, rank=None)
    off = edits.edit_row(OFF, "a", 1, finite=None, rank=None)
    assert anomalies(run, off) == [("output.logprobs", 1)]
    assert anomalies(run, edits.edit_row(off, "a", 1, logprob=logprob)) == []


@pytest.mark.parametrize(
    "finite",
    [
        None,
        Finite(token_ids=[4, 9], logprobs=[HALF, QUARTER], complete=True),
        Finite(token_ids=[4, 9, 11], logprobs=[HALF, QUARTER, QUARTER], complete=False),
        Finite(token_ids=[4, 9, 12], logprobs=[HALF, QUARTER, QUARTER], complete=True),
    ],
    ids=["none", "fewer", "incomplete", "another token"],
)
def test_finite_sets_are_compared(finite: Finite | None) -> None:
    assert ("output.logprobs", 2) in anomalies(edits.edit_row(ON, "a", 2, finite=finite))


def test_the_order_of_tied_tokens_does_not_count() -> None:
    run = edits.edit_finite(
        ON,
        "a",
        2,
        lambda finite: msgspec.structs.replace(
            finite, token_ids=[finite.token_ids[0], *finite.token_ids[:0:-1]]
        ),
    )
    assert edits.row_at(run, "a", 2) != edits.row_at(OFF, "a", 2)
    assert anomalies(run) == []


# --- contradictions within one run ----------------------------------------------------------------


@pytest.mark.parametrize(("rank", "sound"), [(1, False), (2, True), (3, True), (4, False)])
def test_a_rank_must_fit_the_logprobs_of_its_row(rank: int, sound: bool) -> None:  # noqa: FBT001
    found = anomalies(*both("a", 1, rank=rank))
    assert found == ([] if sound else [("output.ranks", 1), ("output.ranks", 1)])


def test_an_incomplete_row_bounds_a_rank_from_below_only() -> None:
    finite = Finite(token_ids=[2, 5], logprobs=[HALF, QUARTER], complete=False)
    assert anomalies(*both("a", 1, rank=9, finite=finite)) == []
    assert len(anomalies(*both("a", 1, rank=1, finite=finite))) == 2


def test_a_token_without_probability_ranks_behind_all_finite_ones() -> None:
    assert anomalies(*both("a", 1, token_id=12, logprob="-inf", rank=16)) == []
    assert len(anomalies(*both("a", 1, token_id=12, logprob="-inf", rank=3))) == 2


def test_a_token_has_one_logprob() -> None:
    found = judged(*both("a", 1, logprob=math.nextafter(QUARTER, 0))).findings
    assert [f.anomaly for f in found] == ["output.logprobs", "output.logprobs"]
    assert "expected one logprob of token 5" in found[0].message


def test_replay_off_carries_no_supports() -> None:
    off = edits.edit_emission(OFF, 0, supports=[[3, 5, 7]])
    (finding,) = judged(ON, off).findings
    assert (finding.anomaly, finding.where.run) == ("mask.absent", "off")


# --- ends -----------------------------------------------------------------------------------------


def test_a_request_that_ended_in_one_run_does_not_go_on_in_the_other() -> None:
    on = edits.drop_row(ON, "a", 3)
    (finding,) = judged(on).findings
    assert (finding.anomaly, finding.where.row) == ("output.tokens", 3)
    assert "expected the 4 rows of replay off (end: length), found 3 rows" in finding.message


@pytest.mark.parametrize("change", [{"finish_reason": "stop"}, {"stop_reason": 6}])
def test_requests_end_alike(change: dict[str, object]) -> None:
    assert anomalies(edits.edit_emission(ON, 1, **change)) == [("output.tokens", 4)]


def test_rows_that_a_cut_stream_lacks_are_no_difference() -> None:
    on = replace(ON, outputs=edits.truncated(ON.outputs, 1))
    assert anomalies(on) == []
    assert judged(on).measured["rows"] == 1


def test_rows_that_a_writer_dropped_are_no_difference() -> None:
    on = replace(ON, outputs=edits.dropping(ON.outputs, 0))
    assert anomalies(on) == []
    assert judged(on).measured["rows"] == 3


def test_a_request_that_only_one_run_served_is_told() -> None:
    assert ON.outputs is not None
    refusal = Refusal(request="a", error="ValueError", message="no")
    on = replace(ON, outputs=replace(ON.outputs, records=(refusal,)))
    (finding,) = judged(on).findings
    assert finding.anomaly == "output.tokens"
    assert "found 0 rows with replay on (end: refused)" in finding.message


def test_rows_said_twice_are_told() -> None:
    off = edits.edit_emission(OFF, 1, first=0)
    assert ("output.tokens", 1) in anomalies(ON, off)


def test_one_run_alone_is_judged_for_contradictions_and_nothing_is_compared() -> None:
    judgement = OUTPUTS.function(CLAIM, {"on": edits.edit_row(ON, "a", 1, rank=9)})
    assert [found.anomaly for found in judgement.findings] == ["output.ranks"]
    assert judgement.measured == {"rows": 0}
