"""Each way in which calls can differ has its name, its place and its clean neighbour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import pytest

from tests.fakes.collectives import claim, history, hung
from tests.fakes.ranks import Fields, Rank, ranks
from tests.tprig.checkers.collectives.test_shapes import judged, only, passes, sound
from tprig.checkers.verdict import judge_claim


def usual(rank: Rank) -> None:
    for _ in range(2):
        rank.step()
        for place in range(4):
            rank.call(at=f"layer{place}.py:forward:1")


def with_third(change: Callable[[Rank], object], who: int = 1) -> Callable[[Rank], None]:
    """A third step, in the middle of which one rank does something else."""

    def play(rank: Rank) -> None:
        usual(rank)
        rank.step()
        rank.call(at="layer0.py:forward:1")
        if rank.rank == who:
            change(rank)
        else:
            rank.call(at="layer1.py:forward:1").call(at="layer2.py:forward:1")
        rank.call(at="layer3.py:forward:1")
        usual(rank)

    return play


def second(rank: Rank, **fields: Unpack[Fields]) -> Rank:
    return rank.call(at="layer1.py:forward:1", **fields)


def third(rank: Rank) -> Rank:
    return rank.call(at="layer2.py:forward:1")


CHANGES: list[tuple[str, Callable[[Rank], object]]] = [
    ("collective.missing", third),
    ("collective.extra", lambda r: third(second(r).call(at="other.py:f:1"))),
    ("collective.order", lambda r: second(third(r))),
    ("collective.size", lambda r: third(second(r, shape=(5, 8)))),
    ("collective.dtype", lambda r: third(second(r, dtype="bfloat16"))),
    ("collective.reduction", lambda r: third(second(r, reduction="max"))),
    ("collective.root", lambda r: third(second(r, root=1))),
    ("collective.type", lambda r: third(second(r, kind="reduce_scatter"))),
    ("collective.group", lambda r: third(second(r, group="dp:0"))),
    ("collective.group", lambda r: third(second(r, group="dp:0", ranks=[1, 3]))),
    ("collective.backend", lambda r: third(second(r, backend="gloo"))),
    ("graph.replay-vs-eager", lambda r: third(second(r, mode="capture"))),
    ("graph.replay-vs-eager", lambda r: third(r.replay("d0"))),
]


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize(("anomaly", "change"), CHANGES)
def test_one_rank_of_two_is_told_by_what_both_did_before(
    anomaly: str, change: Callable[[Rank], object], who: int
) -> None:
    """The earlier steps show which of two is right about whether a call is made, and which."""
    finding = only(history(ranks(2, with_third(change, who))))
    assert (finding.anomaly, finding.where.step) == (anomaly, 2)
    if anomaly in ("collective.missing", "collective.extra"):
        assert finding.where.rank == who
        assert "all ranks issued it in the same place before" in finding.message


@pytest.mark.parametrize("who", [0, 2])
@pytest.mark.parametrize(("anomaly", "change"), CHANGES)
def test_one_rank_of_three_is_told_by_the_others(
    anomaly: str, change: Callable[[Rank], object], who: int
) -> None:
    finding = only(history(ranks(3, with_third(change, who))))
    assert (finding.anomaly, finding.where.rank, finding.where.step) == (anomaly, who, 2)


def test_of_two_ranks_without_a_precedent_none_is_blamed() -> None:
    def play(rank: Rank) -> None:
        rank.step().call(at="a.py:f:1")
        if rank.rank == 0:
            rank.call(at="b.py:f:1")
        rank.call(at="c.py:f:1")

    finding = only(history(ranks(2, play)))
    assert finding.anomaly == "collective.missing"
    assert finding.where.rank == 1
    assert "nothing tells which of them is right" in finding.message


def test_a_call_that_is_one_too_many_at_the_very_end() -> None:
    def play(rank: Rank) -> None:
        usual(rank)
        if rank.rank == 2:
            rank.call(at="exit.py:f:1")

    finding = only(history(ranks(3, play)))
    assert (finding.anomaly, finding.where.rank) == ("collective.extra", 2)


def test_an_inserted_call_is_found_where_it_was_inserted_and_not_at_the_tail() -> None:
    def play(rank: Rank) -> None:
        for step in range(50):
            rank.step()
            for place in range(4):
                rank.call(at=f"layer{place}.py:forward:1")
                if (rank.rank, step, place) == (1, 17, 2):
                    rank.call(at=f"layer{place}.py:forward:1")

    finding = only(history(ranks(3, play)))
    assert (finding.anomaly, finding.where.step) == ("collective.extra", 17)


def test_differences_that_follow_are_counted_and_not_blamed() -> None:
    def play(rank: Rank) -> None:
        sound(rank, steps=1)
        for step in range(30):
            rank.step()
            rank.call(at="a.py:f:1")
            if rank.rank == 0 or step % 10:
                rank.call(at="b.py:f:1")
            for place in range(20):
                rank.call(at=f"c.py:f:{place}")

    verdict = judged(history(ranks(2, play)))
    assert verdict.failures == {"collective.missing": 1}
    assert verdict.notes["rank 1 afterwards"] == "2 differences"


# --- several groups -----------------------------------------------------------------------------


def two_groups(rank: Rank, *, swapped: bool, left: bool = True) -> None:
    usual(rank)
    rank.step()
    calls = [("tp:0", "tp.py:f:1"), ("dp:0", "dp.py:f:1")]
    for group, at in calls[::-1] if swapped else calls:
        rank.call(at=at, group=group, left=left)
        if not left:
            break


def test_groups_that_are_interleaved_differently_are_told_from_disorder_in_one() -> None:
    run = history(ranks(2, lambda rank: two_groups(rank, swapped=rank.rank == 1)))
    assert only(run).anomaly == "collective.cross-group-order"
    passes(history(ranks(2, lambda rank: two_groups(rank, swapped=True))))


def test_ranks_that_wait_in_a_circle() -> None:
    def play(rank: Rank) -> None:
        two_groups(rank, swapped=rank.rank == 1, left=False)

    verdict = judged(hung(ranks(2, play)))
    circle = next(f for f in verdict.findings if "in a circle" in f.message)
    assert circle.anomaly == "collective.cross-group-order"
    assert "rank 0 waits in" in circle.message
    assert "for rank 1" in circle.message


def test_ranks_of_different_groups_owe_one_another_nothing() -> None:
    """Two pairs of tensor-parallel ranks, whose only common group is the world."""

    def play(rank: Rank) -> None:
        pair = [0, 1] if rank.rank < 2 else [2, 3]
        rank.step()
        for place in range(3 if rank.rank < 2 else 5):
            rank.call(at=f"layer{place}.py:f:1", ranks=pair, group="tp:0")
        rank.call("barrier", None, group="world:0", dtype=None)

    passes(history(ranks(4, play)))


def test_a_rank_that_strays_in_its_pair_is_found_among_four() -> None:
    def play(rank: Rank) -> None:
        pair = [0, 1] if rank.rank < 2 else [2, 3]
        rank.step().call(ranks=pair, shape=(5 if rank.rank == 3 else 4, 8))
        rank.call("barrier", None, group="world:0", dtype=None)

    finding = only(history(ranks(4, play)))
    assert (finding.anomaly, finding.where.rank) == ("collective.size", 3)


def test_a_send_is_met_by_a_receive() -> None:
    def play(rank: Rank) -> None:
        rank.step().call("recv" if rank.rank else "send", ranks=[0, 1], root=0)

    passes(history(ranks(2, play)))


def test_what_one_rank_does_alone_is_nobody_s_business() -> None:
    def play(rank: Rank) -> None:
        rank.step().call()
        if rank.rank == 0:
            rank.call("all_reduce", backend=None, ranks=[0], group="dp:0")

    passes(history(ranks(2, play)))


# --- graphs -------------------------------------------------------------------------------------


def test_templates_of_one_capture_must_hold_the_same() -> None:
    def play(rank: Rank) -> None:
        size = 5 if rank.rank == 1 else 4
        rank.template("graph 0", f"d{size}", (4, 8), (size, 8))
        usual(rank)

    finding = only(history(ranks(2, play)))
    assert finding.anomaly == "graph.template"
    assert "graph 0 to hold all_reduce of float32[4, 8]" in finding.message
    assert "as its collective 1" in finding.message


def test_ranks_that_replay_different_graphs() -> None:
    def play(rank: Rank) -> None:
        rank.template("graph 0", "d0", (4, 8)).template("graph 1", "d1", (8, 8))
        rank.step().replay("d1" if rank.rank == 1 else "d0").call()

    assert only(history(ranks(2, play))).anomaly == "graph.template"


def test_replays_count_and_agree() -> None:
    def play(rank: Rank) -> None:
        rank.template("graph 0", "d0", (4, 8))
        for _ in range(3):
            rank.step().replay("d0").call()

    verdict = judged(history(ranks(2, play)))
    assert verdict.verdict == "pass"
    assert verdict.measured["replays"] == 3


# --- hangs --------------------------------------------------------------------------------------


def stuck(rank: Rank) -> None:
    usual(rank)
    rank.step().call(at="layer0.py:forward:1", left=False)


@pytest.mark.parametrize("state", ["stopped", "dead"])
def test_a_process_that_does_nothing_any_more_is_to_blame_where_all_are_at_one_place(
    state: str,
) -> None:
    finding = only(hung(ranks(2, stuck), {1: state}))
    assert (finding.anomaly, finding.where.rank) == ("rank.stall", 1)
    assert f"whose process is {state}," in finding.message
    assert "layer0.py:forward:1" in finding.message


def test_a_rank_that_died_between_collectives_is_named_with_the_last_one() -> None:
    """Its peer's collective failed with it, and so was left."""

    def play(rank: Rank) -> None:
        usual(rank)
        if rank.rank == 0:
            rank.step().call(at="layer0.py:forward:1")

    finding = only(hung(ranks(2, play), {1: "dead"}))
    assert (finding.anomaly, finding.where.rank) == ("rank.stall", 1)
    assert "rank 1, whose process is dead, to go on" in finding.message
    assert "it last left call 14, all_reduce of float32[4, 8] in tp:0 (layer3.py" in finding.message


def test_a_stopped_rank_that_others_wait_for() -> None:
    def play(rank: Rank) -> None:
        usual(rank)
        if rank.rank == 0:
            rank.step().call(at="layer0.py:forward:1", left=False)

    finding = only(hung(ranks(2, play), {1: "stopped"}))
    assert (finding.anomaly, finding.where.rank) == ("rank.stall", 1)
    assert "it last left call" in finding.message


def test_a_rank_that_still_moves_is_slow_and_not_stalled() -> None:
    made = ranks(2, usual)
    made[0].step().call(at="layer0.py:forward:1", left=False)
    looks = [made[0].progress(), made[1].progress(entered=3), *(r.progress(at_ns=9) for r in made)]
    run = history(made, complete=False, forensics=[*looks, *(r.ring() for r in made)])
    finding = only(run)
    assert (finding.anomaly, finding.where.rank) == ("rank.slow", 1)


def test_where_every_rank_was_is_noted() -> None:
    verdict = judged(hung(ranks(2, stuck), {1: "stopped"}))
    assert verdict.notes["rank 1"].startswith("stopped, after 9 collectives, call 16, all_reduce")


# --- what the record accounts for ---------------------------------------------------------------


def test_a_collective_without_a_wire_operation_shows_a_hook_that_is_missing() -> None:
    def play(rank: Rank) -> None:
        usual(rank)
        rank.step().call(backend=None)

    verdict = judged(history(ranks(2, play)))
    assert verdict.verdict == "unknown"
    assert "has no wire operation below it" in verdict.reason


def test_a_wire_operation_that_nobody_asked_for_shows_a_hook_that_is_missing() -> None:
    def play(rank: Rank) -> None:
        usual(rank)
        rank.now_ns += 1000
        rank.wire("cpu-shm", kind="all_reduce", group="tp:0", ranks=[0, 1], shape=[4], dtype=None)

    verdict = judged(history(ranks(2, play)))
    assert verdict.verdict == "unknown"
    assert "was asked for by nothing" in verdict.reason


EXACT = {
    "all_reduces_forward": 2,
    "gathers_forward": 1,
    "all_reduces_draft": 1,
    "gathers_draft": 1,
}


def formulaic(rank: Rank, less: int = 0) -> None:
    for step in range(3):
        rank.step()
        for _ in range(2 - less * (step == 1)):
            rank.call()
        rank.call("all_gather")
        rank.decide("draft", run=True, tokens=3)
        for _ in range(3):
            rank.call(at="draft.py:f:1").call("all_gather", at="draft.py:f:2")
        # The core has nothing to do, and says so.
        rank.decide("schedule", tokens={})


def test_a_formula_holds_or_the_claim_is_open() -> None:
    held = judge_claim(claim(exact=EXACT), {"on": history(ranks(2, formulaic))})
    assert (held.verdict, held.measured["all_reduces"]) == ("pass", 15)
    broken = history(ranks(2, lambda rank: formulaic(rank, less=1)))
    verdict = judge_claim(claim(exact=EXACT), {"on": broken})
    assert verdict.verdict == "unknown"
    assert "expected 2 all-reduces in the forward phase of step 1, found 1" in verdict.reason
