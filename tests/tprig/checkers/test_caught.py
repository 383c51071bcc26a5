"""Planted faults: caught by the anomaly that names them, and by it first."""

from __future__ import annotations

from tests.fakes import histories
from tests.tprig.checkers import edits
from tests.tprig.checkers.examples import OFF, ON, struck
from tprig.checkers.caught import CAUGHT
from tprig.checkers.checker import Judgement
from tprig.checkers.verdict import judge_claim
from tprig.history import RunHistory

ROLES = {"off": "off", "on": "on"}
CLAIM = histories.claim("caught", ROLES, anomalies=["mask.membership"])
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
