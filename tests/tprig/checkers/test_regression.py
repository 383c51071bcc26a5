"""A candidate must be equal to its baseline, and where it is not the place is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.fakes import histories, stages
from tests.tprig.checkers import edits
from tprig import evidence
from tprig.checkers.verdict import judge_claim
from tprig.history import RunHistory

CLAIM = histories.claim("regression", {"baseline": "baseline", "candidate": "candidate"})
BASELINE, CANDIDATE = stages.run("baseline"), stages.run("candidate")


def judged(candidate: RunHistory) -> evidence.Verdict:
    return judge_claim(CLAIM, {"baseline": BASELINE, "candidate": candidate})


def test_equal_arms_pass() -> None:
    found = judged(CANDIDATE)
    assert found.verdict == "pass"
    assert found.measured["rows"] == 4
    assert found.measured["accepted"] == 2
    assert "parts first" not in found.notes


@pytest.mark.parametrize(
    ("change", "anomaly"),
    [
        ({"token_id": 11}, "output.tokens"),
        ({"logprob": -0.25}, "output.logprobs"),
        ({"rank": 7}, "output.ranks"),
    ],
)
def test_a_row_that_differs_fails_by_its_name(change: dict[str, Any], anomaly: str) -> None:
    found = judged(edits.edit_row(CANDIDATE, "a", 2, **change))
    assert (found.verdict, list(found.failures)) == ("fail", [anomaly])
    assert "as with the baseline" in found.reason
    assert found.findings[0].where.row == 2


def test_acceptance_that_differs_is_found_in_vllm_s_own_counters() -> None:
    assert CANDIDATE.steps is not None
    *before, last = CANDIDATE.steps.records
    assert isinstance(last, evidence.Step)
    other = msgspec.structs.replace(last, accepted_per_position=[1, 0, 0])
    steps = replace(CANDIDATE.steps, records=(*before, other))
    found = judged(replace(CANDIDATE, steps=steps))
    assert (found.verdict, list(found.failures)) == ("fail", ["output.acceptance"])
    assert "found 1 / 0 / 0 accepted of 1 by position" in found.reason


def test_a_difference_is_located_at_its_stage() -> None:
    changed = stages.run("candidate", edits={0: stages.changed("processed_logits", 1)})
    found = judged(edits.edit_row(changed, "a", 2, logprob=-0.25))
    assert found.verdict == "fail"
    assert found.notes["parts first"].startswith(
        "stage processed_logits, step 1, rank 0, request a: "
    )


def test_a_row_that_the_candidate_lacks_fails() -> None:
    assert CANDIDATE.outputs is not None
    first, _ = CANDIDATE.outputs.records
    assert isinstance(first, evidence.Emission)
    short = msgspec.structs.replace(first, finish_reason="stop")
    outputs = replace(CANDIDATE.outputs, records=(short,))
    found = judged(replace(CANDIDATE, outputs=outputs))
    assert found.verdict == "fail"
    assert "expected the 4 rows of the baseline (end: length)" in found.reason


def test_arms_that_were_asked_differently_prove_nothing() -> None:
    assert CANDIDATE.workload is not None
    other = msgspec.structs.replace(CANDIDATE.workload, seed=99)
    assert judged(replace(CANDIDATE, workload=other)).verdict == "unknown"


def test_a_missing_arm_leaves_it_unknown() -> None:
    assert judge_claim(CLAIM, {"baseline": BASELINE}).verdict == "unknown"
