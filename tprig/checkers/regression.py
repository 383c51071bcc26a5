"""Judges a candidate against a baseline: the same requests, equal rows and acceptance, bit for bit.

Where a difference shows and the stages of both were recorded, it is said where the runs part
first: a changed logit is found at its stage, whatever becomes of it in the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from tprig.checkers.boundary import divergence
from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.emitted import misplacements, whole
from tprig.checkers.pairs import Arm, compare
from tprig.evidence import Claim, Finding, Location, Step
from tprig.history import FIRST_RECORD_LINE, RunHistory

BASELINE, CANDIDATE = "baseline", "candidate"


def check_regression(claim: Claim, runs: Runs) -> Judgement:  # noqa: ARG001 - a checker's signature
    """Judge roles `baseline` and `candidate`.

    Measured: `rows` (compared), `accepted` and `verifications` of the baseline.
    """
    judgement = Judgement({"rows": 0})
    arms = {
        role: Arm.of(runs[role], f"the {role}") for role in (BASELINE, CANDIDATE) if role in runs
    }
    for arm in arms.values():
        judgement.findings += misplacements(arm.run, arm.requests)
    if len(arms) < 2:
        return judgement
    baseline, candidate = arms[BASELINE], arms[CANDIDATE]
    for request in baseline.requests | candidate.requests:
        rows, findings = compare(request, baseline, candidate)
        judgement.measured["rows"] += rows
        judgement.compared += findings
    judgement.compared += _acceptance(baseline.run, candidate.run)
    judgement.findings += judgement.compared
    _measure(judgement, baseline.run, candidate.run)
    return judgement


def _by_position(run: RunHistory) -> tuple[int, list[int]]:
    """Verifications that vLLM counted, and accepted drafts by position."""
    drafts, accepted = 0, list[int]()
    for _, step in _steps(run):
        drafts += step.drafts or 0
        pairs = zip_longest(accepted, step.accepted_per_position or [], fillvalue=0)
        accepted = [a + b for a, b in pairs]
    return drafts, accepted


def _steps(run: RunHistory) -> Iterator[tuple[int, Step]]:
    if run.steps is not None:
        for line, record in enumerate(run.steps.records, FIRST_RECORD_LINE):
            if isinstance(record, Step):
                yield line, record


def _acceptance(baseline: RunHistory, candidate: RunHistory) -> list[Finding]:
    """Of both, by vLLM's own counters over the whole run."""
    if not (whole(baseline.steps) and whole(candidate.steps)):
        return []
    expected, found = _by_position(baseline), _by_position(candidate)
    if expected == found:
        return []
    assert candidate.steps is not None
    lines = [line for line, _ in _steps(candidate)]
    return [
        Finding(
            anomaly="output.acceptance",
            message=f"expected {_told(expected)} as with the baseline, found {_told(found)} with "
            "the candidate",
            where=Location(
                file=candidate.steps.path, line=lines[-1] if lines else 1, run=candidate.id
            ),
        )
    ]


def _told(counts: tuple[int, list[int]]) -> str:
    return f"{' / '.join(map(str, counts[1])) or 'nothing'} accepted of {counts[0]} by position"


def _measure(judgement: Judgement, baseline: RunHistory, candidate: RunHistory) -> None:
    drafts, accepted = _by_position(baseline)
    judgement.measured |= {"verifications": drafts, "accepted": sum(accepted)}
    judgement.notes["acceptance by position"] = _told((drafts, accepted))
    parted = divergence(baseline, candidate)
    if parted is not None:
        judgement.notes["parts first"] = str(parted)


REGRESSION = Checker(
    name="regression",
    roles=(BASELINE, CANDIDATE),
    needs=("run", "workload", "outputs", "steps"),
    seams=(),
    function=check_regression,
)
