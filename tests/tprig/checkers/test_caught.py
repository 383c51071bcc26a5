"""Planted faults: caught by the anomaly that names them, and by it first."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from tests.tprig.checkers import edits
from tests.tprig.checkers.examples import EXAMPLES, OFF, ON, TP1, TP2, caught_claim, struck
from tprig.checkers.caught import CAUGHT
from tprig.checkers.checker import Judgement
from tprig.checkers.verdict import judge_claim
from tprig.history import RunHistory

CLAIM = caught_claim()
CUT = edits.edit_support(ON, "a", 2, [4, 11])


def judged(on: RunHistory) -> Judgement:
    return CAUGHT.function(CLAIM, {"off": OFF, "on": on})


def test_a_fault_that_is_named_is_caught() -> None:
    judgement = judged(struck(CUT))
    assert judgement.findings == []
    assert judgement.measured == {"rows": 4, "strikes": 1, "findings": 1}
    assert "expected the emitted token 9 in its support" in judgement.notes["caught"]
    assert judgement.notes["struck"] == "mask-token-cut: token 9 cut"


def test_a_fault_that_never_struck_proves_nothing() -> None:
    verdict = judge_claim(CLAIM, {"off": OFF, "on": CUT})
    assert verdict.verdict == "unknown"
    assert verdict.reason == "the fault never struck: nothing was altered"


def test_a_fault_that_nobody_saw_has_survived() -> None:
    (finding,) = judged(struck(ON)).findings
    assert finding.anomaly == "fault.survived"
    assert (finding.where.file, finding.where.line) == ("runs/on/ranks/rank0.jsonl", 2)


def test_the_first_to_blame_must_be_the_named_one() -> None:
    run = edits.edit_emission(struck(CUT), 0, supports=None)
    (finding,) = judged(run).findings
    assert finding.anomaly == "fault.misnamed"
    assert "expected mask.membership to be blamed first, found mask.absent" in finding.message


# --- other pairs of runs -----------------------------------------------------------------------


def test_a_run_that_was_lost_is_judged_by_what_it_left() -> None:
    """It is not complete, which says nothing of what was found."""
    claim = msgspec.structs.replace(
        CLAIM,
        checker="caught_lost",
        runs={"on": EXAMPLES["engine.crash"].violating["on"].id},
        anomalies=["engine.crash"],
        judges=["engine"],
    )
    lost = struck(EXAMPLES["engine.crash"].violating["on"])
    assert lost.run is not None
    lost = replace(lost, run=msgspec.structs.replace(lost.run, complete=False))
    verdict = judge_claim(claim, {lost.id: lost})
    assert (verdict.verdict, verdict.failures) == ("pass", {}), verdict.reason
    assert verdict.notes["time to detection"] == "crashed 0.0 s after launch"
    assert verdict.notes["seen"] == "engine: engine.crash (1)"


def test_a_lost_run_that_nobody_blames_has_survived() -> None:
    claim = msgspec.structs.replace(
        CLAIM, checker="caught_lost", runs={"on": "on"}, judges=["engine"]
    )
    assert list(judge_claim(claim, {"on": struck(ON)}).failures) == ["fault.survived"]


def test_a_silent_fault_is_held_against_the_other_size() -> None:
    claim = msgspec.structs.replace(
        CLAIM,
        checker="caught_parity",
        runs={"tp1": "tp1", "tp2": "tp2"},
        anomalies=["output.tp-parity"],
        judges=["parity"],
        tensor_parallel_size=2,
    )
    wrong = struck(edits.edit_row(TP2, "a", 1, token_id=9, rank=3))
    verdict = judge_claim(claim, {"tp1": TP1, "tp2": wrong})
    assert (verdict.verdict, verdict.failures) == ("pass", {}), verdict.reason
    assert verdict.notes["blamed"] == "output.tp-parity"
    quiet = judge_claim(claim, {"tp1": TP1, "tp2": struck(TP2)})
    assert list(quiet.failures) == ["fault.survived"]


def test_only_who_is_asked_is_heard() -> None:
    claim = msgspec.structs.replace(CLAIM, judges=["outputs"])
    assert list(judge_claim(claim, {"off": OFF, "on": struck(CUT)}).failures) == ["fault.survived"]


def test_a_judge_that_there_is_not_leaves_the_claim_open() -> None:
    claim = msgspec.structs.replace(CLAIM, judges=["oracles"])
    assert judge_claim(claim, {"off": OFF, "on": struck(CUT)}).verdict == "unknown"


def test_what_shows_before_the_strike_is_no_detection_of_it() -> None:
    judgement = judged(edits.edit_row(struck(CUT), "a", 0, rank=2))
    assert judgement.notes["time to detection"] == "0 steps, 0.00 s"
