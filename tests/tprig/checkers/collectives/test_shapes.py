"""Shapes of real failures, as literal histories: named, located, and told from their twins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.fakes.collectives import claim, history, hung
from tests.fakes.ranks import Rank, coverage, ranks
from tprig.checkers.verdict import judge_claim
from tprig.evidence import Finding, Verdict
from tprig.history import RunHistory

GATHER = "logits.py:gather:9"
DRAFT_GATHER = "drafter.py:gather:7"


def judged(run: RunHistory) -> Verdict:
    return judge_claim(claim(tensor_parallel_size=len(run.ranks)), {run.id: run})


def only(run: RunHistory) -> Finding:
    """The one finding of a claim that fails by it."""
    verdict = judged(run)
    assert verdict.verdict == "fail", verdict.reason
    assert len(verdict.findings) == 1, verdict.failures
    return verdict.findings[0]


def failures(run: RunHistory) -> list[str]:
    """What is found, in the order of blame."""
    verdict = judged(run)
    assert verdict.verdict == "fail", verdict.reason
    return list(verdict.failures)


def passes(run: RunHistory) -> None:
    verdict = judged(run)
    assert (verdict.verdict, verdict.failures) == ("pass", {}), verdict.reason


def forward(rank: Rank, tokens: int, layers: int = 2, **facts: object) -> None:
    """A forward pass over so many tokens."""
    rank.step({"a": tokens}, **facts).decide("batch", tokens=tokens)
    for layer in range(layers):
        rank.call(shape=(tokens, 8), at=f"layer{layer}.py:attention:1")
        rank.call(shape=(tokens, 8), at=f"layer{layer}.py:mlp:2")
    rank.call("all_gather", (tokens, 16), at=GATHER)


def drafts(rank: Rank, count: int = 3, skip: int | None = None) -> None:
    """So many drafted tokens; of one of them the gather may be left out."""
    rank.decide("draft", run=count > 0, tokens=count)
    for token in range(count):
        rank.call(shape=(1, 8), at="drafter.py:attention:1")
        rank.call(shape=(1, 8), at="drafter.py:mlp:2")
        if token != skip:
            rank.call("all_gather", (1, 16), at=DRAFT_GATHER)


def sound(rank: Rank, steps: int = 3, tokens: int = 4) -> None:
    for _ in range(steps):
        forward(rank, tokens)
        drafts(rank)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_ranks_that_issue_the_same_pass(count: int) -> None:
    passes(history(ranks(count, sound)))


# --- the drafter's gate flips near max_model_len on one rank ------------------------------------


def gated(rank: Rank) -> None:
    sound(rank, steps=2)
    forward(rank, 4)
    drafts(rank, 0 if rank.rank == 1 else 3)


def test_a_gate_that_flips_on_one_rank_is_a_decision_before_it_is_a_missing_call() -> None:
    verdict = judged(history(ranks(2, gated)))
    assert list(verdict.failures) == ["decision.divergence", "collective.missing"]
    decision, missing = verdict.findings
    assert decision.where.step == 2
    assert "draft: rank 0 says run True, tokens 3, rank 1 says run False, tokens 0" in (
        decision.message
    )
    assert (missing.where.rank, missing.where.step) == (1, 2)
    assert "drafter.py:attention:1" in missing.message
    assert "the last decision in which they differ before it: in step 2, draft" in missing.message


def test_a_gate_that_flips_on_both_ranks_is_no_divergence() -> None:
    def play(rank: Rank) -> None:
        sound(rank, steps=2)
        forward(rank, 4)
        drafts(rank, 0)
        sound(rank, steps=1)

    passes(history(ranks(2, play)))


# --- numbers of all-reduces drift apart, at equal step counters ---------------------------------

COUNTS = (27_911, 27_890, 27_872, 27_860)
STEPS = 1_000


def drifting(rank: Rank) -> None:
    """Each rank leaves out so many of them, one a step, from a step of its own on."""
    lacking = COUNTS[0] - COUNTS[rank.rank]
    left = COUNTS[0]
    for step in range(STEPS):
        rank.step()
        in_step = COUNTS[0] // STEPS + (step < COUNTS[0] % STEPS)
        left -= in_step
        begin = 500 + 50 * rank.rank
        less = begin <= step < begin + lacking
        for place in range(in_step - less):
            rank.call(at=f"layer{place}.py:forward:1")
    assert left == 0


def test_counts_that_drift_apart_at_equal_steps_are_missing_calls() -> None:
    verdict = judged(history(ranks(4, drifting)))
    assert verdict.failures == {"collective.missing": 3}
    places = {(f.where.rank, f.where.step) for f in verdict.findings}
    assert places == {(1, 550), (2, 600), (3, 650)}
    assert verdict.measured["all_reduces"] == COUNTS[-1]


def test_equal_counts_that_freeze_are_no_desync() -> None:
    """Seven each, and nobody moves: its twin."""

    def play(rank: Rank) -> None:
        rank.step()
        for place in range(6):
            rank.call(at=f"layer{place}.py:forward:1")
        rank.call(at="layer6.py:forward:1", left=False)

    finding = only(hung(ranks(4, play)))
    assert finding.anomaly == "rank.equal-freeze"
    assert "after 7/7/7/7 collectives" in finding.message
    assert "layer6.py" in finding.message


def test_ranks_that_freeze_outside_of_any_collective_are_an_equal_freeze() -> None:
    def play(rank: Rank) -> None:
        rank.step().call()

    finding = only(hung(ranks(2, play)))
    assert finding.anomaly == "rank.equal-freeze"
    assert "outside of any collective" in finding.message


# --- three ranks wait at the MoE's all-reduce, and one does not come ----------------------------


def moe(rank: Rank) -> None:
    rank.step()
    rank.call(at="layer0.py:attention:1")
    if rank.rank != 3:
        rank.call(at="layer0.py:moe:2", left=False)


def test_a_rank_that_others_wait_for_is_the_one_that_stalls() -> None:
    finding = only(hung(ranks(4, moe)))
    assert (finding.anomaly, finding.where.rank) == ("rank.stall", 3)
    assert "in which ranks 0, 1, 2 wait" in finding.message
    assert "layer0.py:moe:2" in finding.message
    assert "it last left call 0" in finding.message


def test_a_rank_that_went_on_without_the_all_reduce_left_it_out() -> None:
    """The same, where what it did next is known."""

    def play(rank: Rank) -> None:
        for _ in range(2):
            rank.step()
            rank.call(at="layer0.py:attention:1").call(at="layer0.py:moe:2")
            rank.call(at="layer1.py:attention:1").call(at="layer1.py:moe:2")
        moe(rank)
        if rank.rank == 3:
            rank.call(at="layer1.py:attention:1", left=False)

    finding = only(hung(ranks(4, play)))
    assert (finding.anomaly, finding.where.rank) == ("collective.missing", 3)
    assert "layer0.py:moe:2" in finding.message
    assert "3 of 4 ranks issued it" in finding.message


def test_an_operation_that_some_leave_and_others_never_do_hangs_itself() -> None:
    def play(rank: Rank) -> None:
        rank.step().call(at="layer0.py:moe:2", left=rank.rank == 3)

    finding = only(hung(ranks(4, play)))
    assert finding.anomaly == "rank.stall"
    assert "rank 3 did and ranks 0, 1, 2 never did: the operation itself hangs" in finding.message


# --- one rank gathers, its peers reduce ---------------------------------------------------------


def test_another_kind_in_the_same_place_is_named_so() -> None:
    def play(rank: Rank) -> None:
        rank.step().call()
        if rank.rank == 2:
            rank.call("all_gatherv", (14, 256), at="moe.py:dispatch:3", left=False)
        else:
            rank.call("all_reduce", (10733, 3072), at="mlp.py:forward:8", left=False)

    finding = only(hung(ranks(4, play)))
    assert (finding.anomaly, finding.where.rank) == ("collective.type", 2)
    assert "all_gatherv of float32[14, 256]" in finding.message
    assert "all_reduce of float32[10733, 3072]" in finding.message


# --- one rank gathers more than the others ------------------------------------------------------


def gathers(shape: Callable[[Rank], Sequence[int]]) -> RunHistory:
    return history(ranks(8, lambda r: r.step().call("all_gather", shape(r), at=GATHER)))


def test_a_rank_that_gathers_more_elements_is_named() -> None:
    finding = only(gathers(lambda rank: (161_600 if rank.rank == 7 else 145_440,)))
    assert (finding.anomaly, finding.where.rank) == ("collective.size", 7)
    assert "[145440] in tp:0" in finding.message
    assert "7 of 8 ranks issued it" in finding.message
    assert "float32[161600]" in finding.message


def test_the_right_rank_need_not_be_the_first() -> None:
    finding = only(gathers(lambda rank: (161_600 if rank.rank == 0 else 145_440,)))
    assert (finding.anomaly, finding.where.rank) == ("collective.size", 0)


def test_ragged_gathers_tell_the_sizes_of_all_ranks_and_so_agree() -> None:
    def play(rank: Rank) -> None:
        rank.step().call("all_gatherv", (161_600, 145_440), at=GATHER)

    passes(history(ranks(2, play)))


# --- decisions that ranks take by themselves ----------------------------------------------------


def test_a_rank_s_own_draft_budget() -> None:
    def play(rank: Rank) -> None:
        sound(rank, steps=2)
        forward(rank, 4)
        drafts(rank, 2 if rank.rank == 1 else 3)
        sound(rank, steps=1)

    verdict = judged(history(ranks(2, play)))
    assert list(verdict.failures) == ["decision.divergence", "collective.missing"]
    assert "tokens 3, rank 1 says tokens 2" in verdict.findings[0].message
    # Nothing of the three is told twice: the whole drafted token is of one piece.
    assert verdict.failures["collective.missing"] == 1


def test_near_ties_accept_differently_and_the_next_collective_hangs() -> None:
    def play(rank: Rank) -> None:
        sound(rank, steps=2)
        forward(rank, 4)
        rank.decide("acceptance", sampled={"a": 2 if rank.rank == 1 else 3})
        drafts(rank)
        rank.step({"a": 4}).decide("batch", tokens=4)
        rank.call(shape=(6 if rank.rank == 1 else 7, 8), at="layer0.py:attention:1", left=False)

    verdict = judged(hung(ranks(2, play)))
    assert list(verdict.failures) == ["decision.divergence", "collective.size"]
    assert "in step 2, acceptance" in verdict.findings[0].message
    assert "in step 2, acceptance" in verdict.findings[1].message


def test_values_that_differ_at_equal_shapes_come_before_the_decision_on_them() -> None:
    def play(rank: Rank) -> None:
        forward(rank, 4)
        rank.value("gathered_logits", "d1" if rank.rank == 1 else "d0")
        rank.decide("acceptance", sampled={"a": 2 if rank.rank == 1 else 3})
        drafts(rank)

    assert failures(history(ranks(2, play))) == ["value.divergence", "decision.divergence"]


def test_values_that_differ_after_a_decision_follow_from_it() -> None:
    def play(rank: Rank) -> None:
        forward(rank, 4)
        rank.decide("acceptance", sampled={"a": 2 if rank.rank == 1 else 3})
        forward(rank, 4)
        rank.value("gathered_logits", "d1" if rank.rank == 1 else "d0")

    assert failures(history(ranks(2, play))) == ["decision.divergence"]


def test_silent_divergence_of_values_alone_is_found() -> None:
    def play(rank: Rank) -> None:
        forward(rank, 4)
        rank.value("verification", "d1" if rank.rank == 1 else "d0")

    finding = only(history(ranks(2, play)))
    assert (finding.anomaly, finding.where.step) == ("value.divergence", 0)


def test_what_a_rank_has_only_its_part_of_may_differ() -> None:
    def play(rank: Rank) -> None:
        forward(rank, 4)
        rank.value("local_logits", f"d{rank.rank}")

    passes(history(ranks(2, play)))


def test_batch_sizes_of_which_no_majority_is_right() -> None:
    sizes = (24, 24, 25, 25)

    def play(rank: Rank) -> None:
        forward(rank, sizes[rank.rank])

    verdict = judged(history(ranks(4, play)))
    assert list(verdict.failures) == ["decision.divergence", "collective.size"]
    size = next(f for f in verdict.findings if f.anomaly == "collective.size")
    assert "nothing tells which of them is right" in size.message
    assert "as most ranks do" not in verdict.findings[0].message


def test_clocks_of_their_own_that_abort_different_requests() -> None:
    def play(rank: Rank) -> None:
        sound(rank, steps=2)
        forward(rank, 4, finished=["b"] if rank.rank == 1 else ["c"])

    finding = only(history(ranks(2, play)))
    assert (finding.anomaly, finding.where.step) == ("decision.divergence", 2)
    assert "rank 0 says finished ['c'], rank 1 says finished ['b']" in finding.message


def test_a_decision_that_one_rank_never_took() -> None:
    def play(rank: Rank) -> None:
        forward(rank, 4)
        if rank.rank == 0:
            rank.decide("acceptance", sampled={"a": 3})

    finding = only(history(ranks(2, play)))
    assert "rank 1 says nothing" in finding.message


# --- records that are not whole -----------------------------------------------------------------


def test_a_ring_that_wrapped_leaves_the_claim_open() -> None:
    """Of what was lost nothing is known: not even that it was the same."""
    made = ranks(2, lambda rank: sound(rank, steps=3))
    wrapped = history(
        [Rank(0), Rank(1)], complete=False, forensics=[made[0].ring(last=5), made[1].ring(last=7)]
    )
    verdict = judged(wrapped)
    assert "record.truncated" in verdict.failures
    assert not any(name.startswith("collective.") for name in verdict.failures)


def test_dropped_records_leave_the_claim_open() -> None:
    def play(rank: Rank) -> None:
        sound(rank, steps=2)
        forward(rank, 4 + rank.rank)

    verdict = judged(history(ranks(2, play), dropped=1))
    assert verdict.verdict == "unknown"
    assert list(verdict.failures) == ["record.truncated"]


def test_a_stream_that_was_cut_short_is_no_missing_collective() -> None:
    """Nor is it a pass: what came after the cut is not known."""

    def play(rank: Rank) -> None:
        sound(rank, steps=2 if rank.rank == 1 else 3)

    verdict = judged(history(ranks(2, play), complete=False))
    assert (verdict.verdict, verdict.failures) == ("unknown", {})


def test_a_divergence_before_the_cut_is_certain_all_the_same() -> None:
    def play(rank: Rank) -> None:
        forward(rank, 4)
        drafts(rank, skip=0 if rank.rank == 1 else None)
        sound(rank, steps=1)

    assert failures(history(ranks(2, play), complete=False)) == ["collective.missing"]


def test_what_the_streams_lack_the_rings_supply() -> None:
    def play(rank: Rank) -> None:
        sound(rank, steps=2)
        forward(rank, 4)
        drafts(rank, skip=1 if rank.rank == 1 else None)
        if rank.rank == 1:
            rank.call(at="layer0.py:attention:1", left=False)

    finding = only(hung(ranks(2, play)))
    assert (finding.anomaly, finding.where.rank) == ("collective.missing", 1)
    assert DRAFT_GATHER in finding.message


def test_no_coverage_is_no_pass() -> None:
    made = ranks(2, sound)
    for rank in made:
        rank.records.remove(coverage())
    assert judged(history(made)).verdict == "unknown"


def test_a_path_that_is_not_watched_leaves_the_claim_open() -> None:
    made = ranks(2, sound)
    made[1].records.append(coverage(hooked=False))
    verdict = judged(history(made))
    assert verdict.verdict == "unknown"
    assert "rank 1: all_reduce is not watched" in verdict.reason
