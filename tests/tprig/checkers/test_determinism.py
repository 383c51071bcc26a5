"""Equal runs are exact, or every comparison of engines is withdrawn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes import histories, stages
from tests.tprig.checkers import edits
from tests.tprig.checkers.examples import literal
from tprig import evidence
from tprig.checkers.verdict import judge_claim
from tprig.history import RunHistory

PAIR = {"1-first": "first", "1-second": "second"}
CLAIM = histories.claim("determinism", PAIR, minima={"pairs": 1})
FIRST, SECOND = stages.run("first"), stages.run("second")
PARTED = stages.run("second", edits={0: stages.changed("layer.1", 3)})
OFF, ON = literal("off", masks=False), literal("on", masks=True)


def named(*runs: RunHistory) -> dict[str, RunHistory]:
    return {run.id: run for run in runs}


def test_exact_runs_pass_and_are_counted() -> None:
    found = judge_claim(CLAIM, named(FIRST, SECOND))
    assert found.verdict == "pass"
    assert (found.measured["pairs"], found.measured["exact"]) == (1, 1)
    assert found.measured["digests"] > 8


def test_runs_that_part_withdraw_the_claim_and_name_the_stage() -> None:
    found = judge_claim(CLAIM, named(FIRST, PARTED))
    assert found.verdict == "withdrawn"
    assert "1 of 1 pair of equal runs part; the first at stage layer.1, step 1" in found.reason
    assert found.failures == {"determinism.stage": 1}
    assert found.notes["first stages"] == "layer.1"


def test_one_pair_of_several_is_enough() -> None:
    cast = {**PAIR, "2-first": "third", "2-second": "fourth"}
    runs = named(FIRST, SECOND, replace(FIRST, id="third"), replace(PARTED, id="fourth"))
    found = judge_claim(histories.claim("determinism", cast, minima={"pairs": 2}), runs)
    assert (found.verdict, found.measured["pairs"], found.measured["exact"]) == ("withdrawn", 2, 1)


def test_runs_that_differ_by_their_engines_prove_nothing() -> None:
    assert SECOND.engine is not None
    other = replace(SECOND, engine=histories.engine("other", tp=1, masks=True))
    found = judge_claim(CLAIM, named(FIRST, other))
    assert found.verdict == "unknown"
    assert "return_sampling_mask" in found.reason


def test_a_truncated_record_leaves_it_unknown() -> None:
    cut = replace(SECOND, ranks={0: replace(SECOND.ranks[0], complete=False)})
    found = judge_claim(CLAIM, named(FIRST, cut))
    assert found.verdict == "unknown"


# --- what rests on it ---------------------------------------------------------------------------


def outputs_claim() -> evidence.Claim:
    return histories.claim("outputs", {"off": "off", "on": "on"}, boundary=PAIR)


DIFFERENT = edits.edit_row(ON, "a", 1, token_id=9)


@pytest.mark.parametrize("on", [ON, DIFFERENT], ids=["equal", "different"])
def test_a_comparison_is_withdrawn_where_equal_runs_part(on: RunHistory) -> None:
    """It never passes: that they happen to be equal decides nothing."""
    found = judge_claim(outputs_claim(), named(OFF, on, FIRST, PARTED))
    assert found.verdict == "withdrawn"
    assert "layer.1" in found.reason


def test_what_was_compared_is_still_told() -> None:
    found = judge_claim(outputs_claim(), named(OFF, DIFFERENT, FIRST, PARTED))
    assert "expected the token to be 5" in found.notes["withdrawn findings"]


def test_a_comparison_must_be_exact_where_equal_runs_are() -> None:
    assert judge_claim(outputs_claim(), named(OFF, ON, FIRST, SECOND)).verdict == "pass"
    found = judge_claim(outputs_claim(), named(OFF, DIFFERENT, FIRST, SECOND))
    assert found.verdict == "fail"


def test_what_one_run_shows_by_itself_is_not_withdrawn() -> None:
    """A rank that contradicts the logprobs beside it is wrong, however runs differ."""
    wrong = edits.edit_row(ON, "a", 1, rank=9)
    found = judge_claim(outputs_claim(), named(OFF, wrong, FIRST, PARTED))
    assert (found.verdict, list(found.failures)) == ("fail", ["output.ranks"])


@pytest.mark.parametrize("runs", [[FIRST], []])
def test_without_the_equal_runs_it_is_unknown(runs: list[RunHistory]) -> None:
    found = judge_claim(outputs_claim(), named(OFF, ON, *runs))
    assert found.verdict == "unknown"
    assert "second (1-second)" in found.reason


# --- planted ------------------------------------------------------------------------------------


def struck(run: RunHistory, name: str, step: int = 1) -> RunHistory:
    fault = evidence.Fault(name=name, event="struck", step=step, detail="the first number")
    stream = run.ranks[0]
    return edits.with_rank(run, 0, replace(stream, records=(*stream.records, fault)))


LOCATED = histories.claim("located", PAIR, minima={"strikes": 1})


def test_a_planted_fault_is_located_at_its_stage() -> None:
    found = judge_claim(LOCATED, named(FIRST, struck(PARTED, "drift-layer.1")))
    assert found.verdict == "pass"
    assert found.notes["located"].startswith("stage layer.1, step 1, rank 0, request b")


@pytest.mark.parametrize(
    ("run", "name", "step", "anomaly"),
    [
        (PARTED, "drift-embedding", 1, "fault.misnamed"),
        (PARTED, "drift-layer.1", 0, "fault.misnamed"),
        (SECOND, "drift-layer.1", 1, "fault.survived"),
    ],
)
def test_another_stage_step_or_none_is_a_failure(
    run: RunHistory, name: str, step: int, anomaly: str
) -> None:
    found = judge_claim(LOCATED, named(FIRST, struck(run, name, step)))
    assert (found.verdict, list(found.failures)) == ("fail", [anomaly])


def test_a_fault_that_never_struck_proves_nothing() -> None:
    assert judge_claim(LOCATED, named(FIRST, PARTED)).verdict == "unknown"
