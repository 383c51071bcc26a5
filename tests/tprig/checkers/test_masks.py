"""Supports: one to one, aligned, complete, normalised, and no wider than they may be."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from tests.fakes import histories
from tests.tprig.checkers import edits
from tests.tprig.checkers.examples import HALF, ON, QUARTER, TOP_K, with_width
from tprig.checkers.checker import Judgement
from tprig.checkers.masks import MASKS, NORMALIZATION_TOLERANCE
from tprig.evidence import Finite, Number
from tprig.history import RunHistory

CLAIM = histories.claim("masks", {"on": "on"})


def judged(run: RunHistory) -> Judgement:
    return MASKS.function(CLAIM, {"on": run})


def anomalies(run: RunHistory) -> list[tuple[str, int | None]]:
    return [(found.anomaly, found.where.row) for found in judged(run).findings]


def test_a_sound_run_is_measured() -> None:
    judgement = judged(ON)
    assert judgement.findings == []
    assert judgement.measured == {"rows": 4, "supports": 4, "finite_complete": 4, "widths": 4}


# --- one to one -----------------------------------------------------------------------------------


def test_no_supports_at_all_is_one_finding_per_emission() -> None:
    run = edits.edit_emission(ON, 1, supports=None)
    assert anomalies(run) == [("mask.absent", 1)]
    assert judged(run).measured["supports"] == 1


def test_too_many_supports_are_absent_too() -> None:
    run = edits.edit_emission(ON, 0, supports=[[3, 5, 7], [2, 5, 9]])
    assert anomalies(run) == [("mask.absent", 0)]


# --- whose support is it? -------------------------------------------------------------------------


def test_the_support_of_another_row_names_that_row() -> None:
    (finding,) = judged(edits.edit_support(ON, "a", 3, [2, 5, 9])).findings
    assert finding.anomaly == "mask.row-alignment"
    assert "expected the support of row 3, found that of row 1" in finding.message


def test_a_token_lost_with_its_whole_row_is_not_a_second_finding() -> None:
    run = edits.edit_support(ON, "a", 1, [4, 9, 11])
    assert edits.row_at(run, "a", 1).token_id not in edits.support_at(run, "a", 1)
    assert anomalies(run) == [("mask.row-alignment", 1)]


def test_rows_shifted_by_one_are_each_misaligned() -> None:
    _, emission, _ = edits.find(ON, "a", 1)
    assert emission.supports is not None
    run = edits.edit_emission(ON, 1, supports=[emission.supports[-1], *emission.supports[:-1]])
    assert anomalies(run) == [("mask.row-alignment", row) for row in (1, 2, 3)]


def test_another_requests_row_in_the_same_step_is_found() -> None:
    _, on = histories.pair(5, requests=6)
    (request, position), other = _two_requests_of_one_step(on)
    run = edits.edit_support(on, request, position, edits.support_at(on, *other))
    (finding,) = judged(run).findings
    assert finding.anomaly == "mask.row-alignment"
    assert f"of request {other[0]}" in finding.message


def _two_requests_of_one_step(run: RunHistory) -> tuple[tuple[str, int], tuple[str, int]]:
    full = [
        (place, edits.find(run, *place)[1].step)
        for place in edits.places(run)
        if (finite := edits.row_at(run, *place).finite) is not None and finite.complete
    ]
    return next(
        (place, other)
        for place, step in full
        for other, other_step in full
        if other[0] != place[0] and other_step == step
    )


def test_a_far_steps_support_is_no_alignment() -> None:
    _, on = histories.pair(5, requests=6)
    first = edits.places(on)[0]
    far = next(
        place
        for place in edits.places(on)
        if place[0] != first[0] and edits.find(on, *place)[1].step > 4
    )
    run = edits.edit_support(on, *first, edits.support_at(on, *far))
    (finding,) = judged(run).findings
    assert finding.anomaly in {"mask.membership", "mask.support-alignment"}


def test_rows_with_equal_finite_sets_may_share_a_support() -> None:
    row = edits.row_at(ON, "a", 1)
    run = edits.edit_row(ON, "a", 2, token_id=2, finite=row.finite, logprob=HALF, rank=1)
    assert anomalies(edits.edit_support(run, "a", 2, [2, 5, 9])) == []


# --- membership and support -----------------------------------------------------------------------


def test_a_token_outside_its_support_is_told_with_its_logprob() -> None:
    run = edits.edit_row(ON, "a", 2, token_id=12, logprob="-inf")
    (finding,) = judged(run).findings
    assert finding.anomaly == "mask.membership"
    assert "token 12" in finding.message
    assert "-inf" in finding.message


def test_without_logprobs_membership_is_still_judged() -> None:
    run = edits.edit_row(ON, "a", 2, finite=None, logprob=None, rank=None)
    assert anomalies(run) == []
    assert judged(run).measured["finite_complete"] == 3
    assert anomalies(edits.edit_support(run, "a", 2, [4, 11])) == [("mask.membership", 2)]


@pytest.mark.parametrize(
    ("support", "told"),
    [
        ([4, 9], "lacks [11]"),
        ([4, 9, 10, 11], "has [10] too many"),
        ([4, 9, 9, 11], "[9] more than once"),
        ([9, 4, 11], None),
    ],
    ids=["lacking", "extra", "twice", "unordered is the same set"],
)
def test_a_support_is_the_set_of_finite_tokens(support: list[int], told: str | None) -> None:
    findings = judged(edits.edit_support(ON, "a", 2, support)).findings
    assert [found.anomaly for found in findings] == (["mask.support-alignment"] if told else [])
    assert told is None or told in findings[0].message


def test_an_incomplete_finite_set_must_be_held_but_not_equalled() -> None:
    run = edits.edit_finite(ON, "a", 2, lambda finite: _shown(finite, 2, complete=False))
    assert anomalies(run) == []
    assert anomalies(edits.edit_support(run, "a", 2, [1, 4, 9])) == []
    assert anomalies(edits.edit_support(run, "a", 2, [9, 11])) == [("mask.support-alignment", 2)]


def _shown(finite: Finite, count: int, *, complete: bool) -> Finite:
    return Finite(
        token_ids=finite.token_ids[:count], logprobs=finite.logprobs[:count], complete=complete
    )


def test_tokens_outside_the_vocabulary_are_told() -> None:
    run = edits.edit_row(ON, "a", 2, finite=None)
    (finding,) = judged(edits.edit_support(run, "a", 2, [4, 9, 16])).findings
    assert finding.anomaly == "mask.support-alignment"
    assert "size 16, found [16]" in finding.message


# --- normalisation --------------------------------------------------------------------------------


def _with_logprobs(logprobs: list[Number]) -> RunHistory:
    return edits.edit_finite(
        ON, "a", 2, lambda finite: msgspec.structs.replace(finite, logprobs=logprobs)
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_the_tolerance_is_the_tolerance(sign: int) -> None:
    def total(off_by: float) -> list[Number]:
        return [math.log(0.5 + off_by), QUARTER, QUARTER]

    within = _with_logprobs(total(sign * 0.99 * NORMALIZATION_TOLERANCE))
    beyond = _with_logprobs(total(sign * 1.01 * NORMALIZATION_TOLERANCE))
    assert anomalies(within) == []
    assert anomalies(beyond) == [("mask.normalization", 2)]


def test_what_is_known_of_a_row_may_sum_to_less_but_not_to_more() -> None:
    less = edits.edit_finite(ON, "a", 2, lambda finite: _shown(finite, 2, complete=False))
    more = edits.edit_finite(
        ON,
        "a",
        2,
        lambda finite: Finite(token_ids=finite.token_ids, logprobs=[HALF] * 3, complete=False),
    )
    assert anomalies(less) == []
    assert anomalies(more) == [("mask.normalization", 2)]


@pytest.mark.parametrize("word", ["nan", "inf", "-inf"])
def test_words_are_no_logprobs_of_finite_tokens(word: Number) -> None:
    (finding,) = judged(_with_logprobs([HALF, QUARTER, word])).findings
    assert finding.anomaly == "mask.normalization"
    assert str(word) in finding.message


@pytest.mark.parametrize("word", ["nan", "inf"])
def test_an_emitted_token_has_a_log_probability(word: Number) -> None:
    assert anomalies(edits.edit_row(ON, "a", 2, logprob=word)) == [("mask.normalization", 2)]


def test_a_huge_logprob_does_not_break_the_checker() -> None:
    assert anomalies(_with_logprobs([HALF, QUARTER, 1e6])) == [("mask.normalization", 2)]


# --- width ----------------------------------------------------------------------------------------


def test_a_tie_at_the_edge_may_be_wider() -> None:
    assert len(edits.support_at(with_width(tie=True), "a", 2)) == TOP_K + 1
    assert anomalies(with_width(tie=True)) == []
    assert anomalies(with_width(tie=False)) == [("mask.width", 2)]


def test_without_top_k_any_width_will_do() -> None:
    run = with_width(tie=False)
    assert run.workload is not None
    for request in run.workload.requests:
        free = msgspec.structs.replace(request.sampling, top_k=0)
        changed = msgspec.structs.replace(request, sampling=free)
        workload = msgspec.structs.replace(run.workload, requests=[changed])
        assert anomalies(replace(run, workload=workload)) == []


def test_a_width_that_logprobs_do_not_explain_is_not_counted_as_judged() -> None:
    run = edits.edit_finite(
        with_width(tie=False), "a", 2, lambda finite: _shown(finite, 2, complete=False)
    )
    judgement = judged(run)
    assert judgement.findings == []
    assert judgement.measured["widths"] == 3
    assert judgement.measured["supports"] == 4


def test_an_empty_support_is_one_finding() -> None:
    assert anomalies(edits.edit_support(ON, "a", 2, [])) == [("mask.width", 2)]


# --- evidence that is not all there ---------------------------------------------------------------


def test_no_run_is_nothing_measured() -> None:
    assert MASKS.function(CLAIM, {}) == Judgement()


def test_a_row_is_judged_though_the_stream_was_cut_after_it() -> None:
    run = edits.edit_support(ON, "a", 0, [5, 7])
    cut = replace(run, outputs=edits.truncated(run.outputs, 1))
    assert anomalies(cut) == [("mask.membership", 0)]
