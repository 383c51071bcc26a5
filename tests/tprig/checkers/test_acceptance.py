"""Four accounts of acceptance: ranks, emitted tokens, vLLM's counters, and replay off."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes import histories
from tests.tprig.checkers import edits
from tests.tprig.checkers.examples import OFF, ON
from tprig.checkers.acceptance import ACCEPTANCE
from tprig.checkers.checker import Judgement
from tprig.evidence import Verification, Verified
from tprig.history import RunHistory

CLAIM = histories.claim("acceptance", {"off": "off", "on": "on"})
IN_FLIGHT = {"scheduler__async_scheduling": "True"}


def judged(on: RunHistory, off: RunHistory | None = None) -> Judgement:
    return ACCEPTANCE.function(CLAIM, {"on": on} if off is None else {"off": off, "on": on})


def messages(on: RunHistory, off: RunHistory | None = None) -> list[str]:
    findings = judged(on, off).findings
    assert {found.anomaly for found in findings} <= {"output.acceptance"}
    return [found.message for found in findings]


def with_calls(run: RunHistory, *calls: Verified) -> RunHistory:
    """The run with further sampling calls on rank 0, after the others."""
    records = [Verification(step=2 + i, requests=[call]) for i, call in enumerate(calls)]
    stream = run.ranks[0]
    return edits.with_rank(run, 0, replace(stream, records=(*stream.records, *records)))


def call(drafts: list[int], sampled: list[int], rejected: int | None = None) -> Verified:
    expected = len(drafts) + 1 - len(sampled) if sampled else 0
    return Verified(
        request="a",
        draft_token_ids=drafts,
        sampled_token_ids=sampled,
        rejected=expected if rejected is None else rejected,
    )


def with_last_call(run: RunHistory, verified: Verified) -> RunHistory:
    """The run whose second sampling call is another."""
    return edits.edit_call(
        run,
        0,
        1,
        0,
        draft_token_ids=verified.draft_token_ids,
        sampled_token_ids=verified.sampled_token_ids,
        rejected=verified.rejected,
    )


def counting(run: RunHistory, drafts: int, draft_tokens: int, *positions: int) -> RunHistory:
    """The run with vLLM's counters of its second step as given."""
    return edits.edit_step(
        run,
        1,
        drafts=drafts,
        draft_tokens=draft_tokens,
        accepted_tokens=sum(positions),
        accepted_per_position=list(positions),
    )


def test_sound_runs_are_measured_by_the_run_with_replay() -> None:
    judgement = judged(ON, OFF)
    assert (judgement.findings, judgement.missing) == ([], [])
    assert judgement.measured == {
        "rows": 4,
        "verifications": 1,
        "accepted": 2,
        "recovered": 1,
        "bonus": 0,
        "preempted": 0,
    }
    assert judgement.notes == {"acceptance by position": "1/1 1/1 0/1"}
    assert judged(ON).measured == judgement.measured


def test_a_bonus_token_is_no_recovered_one() -> None:
    run = counting(with_last_call(ON, call([5, 9], [5, 9, 6])), 1, 2, 1, 1)
    assert messages(run) == []
    assert judged(run).measured["bonus"] == 1
    assert judged(run).measured["recovered"] == 0


def test_without_valid_drafts_a_token_is_neither_and_vllm_still_counts_the_draft() -> None:
    run = with_last_call(ON, call([-1, -1, -1], [5]))
    run = counting(with_calls(run, call([9], [9, 6])), 2, 4, 1)
    assert messages(run) == []
    measured = judged(run).measured
    assert (measured["verifications"], measured["recovered"], measured["bonus"]) == (2, 0, 1)
    assert judged(run).notes == {"acceptance by position": "1/1"}


# --- each call by itself ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verified", "told"),
    [
        (call([5, 9, 12], [5, 9, 6], rejected=2), "expected 1 rejected of 3 drafts"),
        (call([5, 9, 12], [5, 9, 6], rejected=0), "expected 1 rejected of 3 drafts"),
        (call([5, 8, 12], [5, 9, 6]), "expected the accepted tokens to be the first drafts [5, 8]"),
        (call([5], [5, 9, 6], rejected=0), "expected at most 2 sampled tokens"),
        (call([5, -1, 12], [5, 9, 6]), "expected at most 2 sampled tokens"),
    ],
)
def test_a_call_is_consistent_in_itself(verified: Verified, told: str) -> None:
    assert any(told in message for message in messages(with_last_call(ON, verified)))


def test_a_prefill_chunk_rejects_nothing() -> None:
    chunk = Verification(step=0, requests=[call([], [])])
    stream = ON.ranks[0]
    run = edits.with_rank(ON, 0, replace(stream, records=(chunk, *stream.records)))
    assert messages(run) == []
    (message,) = messages(edits.edit_call(run, 0, 0, 0, rejected=1))
    assert "expected 0 rejected" in message


# --- between ranks ------------------------------------------------------------------------------


def test_ranks_make_the_same_calls() -> None:
    _, on = histories.pair(3, tp=2)
    assert messages(on) == []
    verification = on.ranks[1].records[4]
    assert isinstance(verification, Verification)
    changed = edits.edit_call(on, 1, 4, 0, draft_token_ids=[1, 2, 3])
    finding = next(f for f in judged(changed).findings if "on rank 1" in f.message)
    where = (finding.where.rank, finding.where.line, finding.where.step, finding.where.request)
    assert where == (1, 6, verification.step, verification.requests[0].request)


def test_a_rank_that_stops_early_is_told_only_when_its_stream_is_whole() -> None:
    _, on = histories.pair(3, tp=2)
    whole = on.ranks[1]
    calls = tuple(record for record in whole.records if isinstance(record, Verification))
    stream = replace(whole, records=calls)
    short = edits.with_rank(on, 1, replace(stream, records=stream.records[:-1]))
    (message,) = messages(short)
    assert f"found {len(stream.records) - 1} on rank 1" in message
    cut = edits.with_rank(on, 1, edits.truncated(stream, len(stream.records) - 1))
    assert messages(cut) == []


# --- against the emitted tokens -----------------------------------------------------------------


def test_emitted_tokens_are_the_sampled_ones() -> None:
    findings = judged(edits.edit_row(ON, "a", 2, token_id=4)).findings
    assert [(f.where.file, f.where.row) for f in findings] == [("runs/on/outputs.jsonl", 2)]
    assert "expected the emitted token to be 9, which rank 0 sampled (line 3 of" in (
        findings[0].message
    )


def test_a_sampled_token_that_was_left_out_is_told() -> None:
    (finding,) = judged(edits.edit_emission(ON, 1, first=2)).findings
    assert "expected the emitted token to be 5" in finding.message
    assert "found no such row" in finding.message
    assert (finding.where.line, finding.where.row) == (3, 1)


def test_the_end_of_a_request_cuts_its_last_verification() -> None:
    run = with_last_call(ON, call([5, 9, 6], [5, 9, 6, 2]))
    assert messages(counting(run, 1, 3, 1, 1, 1)) == []


def test_a_token_that_no_call_sampled_is_told() -> None:
    run = counting(with_last_call(ON, call([5, 12], [5, 9])), 1, 2, 1)
    (message,) = messages(run)
    assert "found 3 sampled tokens and 4 rows" in message
    cut = edits.with_rank(run, 0, replace(run.ranks[0], complete=False))
    assert messages(cut) == []


def test_a_sampled_token_that_was_never_emitted_is_told() -> None:
    run = edits.edit_emission(ON, 1, finish_reason=None)
    run = with_calls(run, call([], [7]))
    (message,) = messages(run)
    assert "expected 5 emitted tokens, found 4 and no finish reason" in message
    assert messages(replace(run, outputs=edits.truncated(run.outputs, 2))) == []


def test_a_call_after_the_end_may_only_be_in_flight() -> None:
    run = with_calls(ON, call([1, 2, 3], [1, 5]))
    (message,) = messages(run)
    assert "found 1: scheduling is synchronous" in message
    assert messages(edits.edit_config(run, **IN_FLIGHT)) == []
    assert messages(replace(run, engine=None)) == []


def test_a_call_in_flight_is_not_compared_between_runs() -> None:
    on = edits.edit_config(with_calls(ON, call([1, 2, 3], [1, 5])), **IN_FLIGHT)
    assert messages(on, OFF) == []


def test_no_calls_at_all_is_missing_and_not_a_finding() -> None:
    judgement = judged(edits.with_rank(ON, 0, replace(ON.ranks[0], records=())))
    assert judgement.findings == []
    assert judgement.missing == ["run on: no sampling call was recorded"]


def test_dropped_calls_prove_nothing_about_the_others() -> None:
    run = edits.with_rank(ON, 0, edits.dropping(ON.ranks[0], 0))
    assert messages(run, OFF) == []


# --- against vLLM's counters --------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"drafts": 2},
        {"drafts": 0},
        {"draft_tokens": 4},
        {"accepted_tokens": 1},
        {"accepted_per_position": [1, 0, 0]},
        {"accepted_per_position": [1, 1, 0, 1]},
        {"drafts": None},
    ],
)
def test_counters_are_reconciled_exactly(change: dict[str, object]) -> None:
    findings = judged(edits.edit_step(ON, 1, **change)).findings
    assert findings
    assert {found.where.file for found in findings} == {"runs/on/steps.jsonl"}


def test_counters_that_nobody_saw_are_missing() -> None:
    nothing: dict[str, object] = dict.fromkeys(
        ("running", "drafts", "draft_tokens", "accepted_tokens", "accepted_per_position")
    )
    judgement = judged(edits.edit_step(ON, 1, **nothing))
    assert judgement.findings == []
    assert "run on: vLLM's counters are unknown in 1 step" in judgement.missing[0]


def test_counters_are_only_reconciled_when_all_is_there() -> None:
    wrong = edits.edit_step(ON, 1, drafts=2)
    assert messages(wrong) != []
    assert messages(replace(wrong, steps=edits.truncated(wrong.steps, 2))) == []
    assert messages(edits.incomplete(wrong)) == []


# --- between runs -------------------------------------------------------------------------------


def test_a_rejected_draft_that_differs_is_seen_between_runs_only() -> None:
    on = edits.edit_call(ON, 0, 1, 0, draft_token_ids=[5, 9, 13])
    assert messages(on) == []
    (finding,) = judged(on, OFF).findings
    assert "expected drafts [5, 9, 12] -> sampled [5, 9, 6], 1 rejected" in finding.message
    assert (finding.where.run, finding.where.line, finding.where.row) == ("on", 3, 1)


def test_calls_that_a_cut_stream_lacks_are_no_difference() -> None:
    on = edits.with_rank(ON, 0, edits.truncated(ON.ranks[0], 1))
    assert messages(on, OFF) == []


def test_a_run_without_ranks_is_nothing_measured() -> None:
    assert judged(replace(ON, ranks={})) == Judgement()
