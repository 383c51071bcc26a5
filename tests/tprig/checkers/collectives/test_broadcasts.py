"""What the engine core sent is what each rank took, in its order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.collectives import claim, history
from tests.fakes.ranks import Rank
from tprig import evidence
from tprig.checkers.collectives import check_rank_order

STEPS = ({"a": 4}, {"a": 4, "b": 2}, {"b": 4})


def took(rank: int, *tokens: dict[str, int]) -> Rank:
    made = Rank(rank)
    for one in tokens:
        made.step(one).call()
    return made


def sent(*tokens: dict[str, int]) -> list[evidence.CoreRecord]:
    """Each step, and the call for its sampling behind it."""
    core: list[evidence.CoreRecord] = []
    for one in tokens:
        facts: dict[str, evidence.Fact] = {"tokens": one}
        core.append(evidence.Broadcast(number=len(core), method="execute_model", facts=facts))
        core.append(evidence.Broadcast(number=len(core), method="sample_tokens", facts=None))
    return core


def findings(
    ranks: list[Rank], core: list[evidence.CoreRecord] | None, *, complete: bool = True
) -> list[evidence.Finding]:
    run = history(ranks, core=core, complete=complete)
    return check_rank_order(claim(), {"on": run}).findings


def test_ranks_that_took_what_was_sent() -> None:
    ranks = [took(rank, *STEPS) for rank in (0, 1)]
    judgement = check_rank_order(claim(), {"on": history(ranks, core=sent(*STEPS))})
    assert judgement.findings == []
    assert judgement.measured["broadcasts"] == len(STEPS)


@pytest.mark.parametrize(
    ("core", "step", "told"),
    [
        (({"a": 4}, {"a": 4, "b": 3}, {"b": 4}), 1, "'b': 3}; found that it took tokens {"),
        (({"a": 4}, {"b": 4}, {"a": 4, "b": 2}), 1, "broadcast 2: tokens {'b': 4}"),
        (({"a": 4}, {"a": 4, "b": 2}), 2, "no further step; found that it took one more"),
        ((*STEPS, {"b": 1}), None, "broadcast 6, a step; found that it took nothing"),
    ],
    ids=["another", "out of order", "one too many", "one too few"],
)
def test_what_all_ranks_took_otherwise_is_found_though_they_agree(
    core: tuple[dict[str, int], ...], step: int | None, told: str
) -> None:
    found = findings([took(rank, *STEPS) for rank in (0, 1)], sent(*core))
    assert [(f.anomaly, f.where.rank, f.where.step) for f in found] == [
        ("decision.divergence", 0, step),
        ("decision.divergence", 1, step),
    ]
    assert told in found[0].message


def test_a_rank_that_parted_from_the_other_is_told_of_once() -> None:
    ranks = [took(0, *STEPS), took(1, {"a": 4}, {"a": 4, "b": 1}, {"b": 4})]
    found = findings(ranks, sent(*STEPS))
    assert [(f.anomaly, f.where.rank, f.where.step) for f in found] == [
        ("decision.divergence", 1, 1)
    ]


def test_without_the_core_ranks_are_judged_by_themselves() -> None:
    run = history([took(rank, *STEPS) for rank in (0, 1)])
    judgement = check_rank_order(claim(), {"on": run})
    assert (judgement.findings, judgement.measured["broadcasts"]) == ([], 0)


def test_what_a_rank_that_was_cut_short_has_not_taken_is_no_finding() -> None:
    ranks = [took(rank, *STEPS[:2]) for rank in (0, 1)]
    assert findings(ranks, sent(*STEPS), complete=False) == []


def test_a_core_that_was_cut_short_may_have_sent_more() -> None:
    ranks = [took(rank, *STEPS) for rank in (0, 1)]
    run = history(ranks, core=sent(*STEPS[:2]))
    assert run.core is not None
    run = replace(run, core=replace(run.core, complete=False))
    assert check_rank_order(claim(), {"on": run}).findings == []
