"""Whether a run as a whole has seen enough."""

from __future__ import annotations

from dataclasses import replace

from tests.fakes import histories
from tests.tprig.checkers import edits
from tests.tprig.checkers.examples import OFF, ON
from tprig.checkers.coverage import COVERAGE
from tprig.checkers.verdict import judge_claim

ROLES = {"off": "off", "on": "on"}


def test_counts_are_summed_over_all_runs() -> None:
    judgement = COVERAGE.function(histories.claim("coverage", ROLES), {"off": OFF, "on": ON})
    assert judgement.findings == []
    assert judgement.measured == {
        "rows": 8,
        "verifications": 2,
        "accepted": 4,
        "recovered": 2,
        "bonus": 0,
        "preempted": 0,
    }


def test_too_little_is_unknown_and_wrong_evidence_is_for_others() -> None:
    wrong = edits.edit_call(ON, 0, 1, 0, rejected=0)
    enough = histories.claim("coverage", ROLES, minima={"accepted": 4})
    assert judge_claim(enough, {"off": OFF, "on": wrong}).verdict == "pass"
    more = histories.claim("coverage", ROLES, minima={"accepted": 5, "bonus": 1})
    verdict = judge_claim(more, {"off": OFF, "on": ON})
    assert verdict.verdict == "unknown"
    assert "accepted: 4 measured, at least 5 required" in verdict.reason


def test_a_run_that_recorded_no_call_is_missing() -> None:
    silent = replace(ON, ranks={0: replace(ON.ranks[0], records=())})
    claim = histories.claim("coverage", ROLES)
    verdict = judge_claim(claim, {"off": OFF, "on": silent})
    assert verdict.verdict == "unknown"
    assert "run on: no sampling call was recorded" in verdict.reason
