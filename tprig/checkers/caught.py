"""Judges whether a planted fault was caught: by the anomaly that names it, and by it first.

The correctness checkers are applied to the pair of runs as to any other. A fault that none of
them sees has survived; one for which another anomaly is blamed first was misnamed. Both are
failures of the checkers, not of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator

from tprig.checkers.acceptance import ACCEPTANCE
from tprig.checkers.anomalies import blame
from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.masks import MASKS
from tprig.checkers.outputs import OUTPUTS
from tprig.evidence import Claim, Fault, Finding, Location
from tprig.history import FIRST_RECORD_LINE, RunHistory

SURVIVED = "fault.survived"
MISNAMED = "fault.misnamed"


def check_caught(claim: Claim, runs: Runs) -> Judgement:
    """Judge roles `off` (clean) and `on` (with the fault): the claim names the one anomaly.

    Measured: `rows` of the faulty run, `strikes` of the fault, `findings` of the checkers.
    """
    expected = claim.anomalies[0]
    on = runs.get("on")
    struck = list(_strikes(on)) if on is not None else []
    judgement = Judgement()
    findings = sorted(_findings(claim, runs, judgement), key=lambda f: blame(f.anomaly))
    judgement.measured["strikes"] = len(struck)
    judgement.measured["findings"] = len(findings)
    if not struck:
        judgement.missing.append("the fault never struck: nothing was altered")
        return judgement
    judgement.notes["struck"] = "; ".join(dict.fromkeys(detail for _, detail in struck))
    if not findings:
        judgement.findings.append(_survived(expected, struck[0][0]))
    elif findings[0].anomaly != expected:
        judgement.findings.append(_misnamed(expected, findings[0]))
    else:
        judgement.notes["caught"] = findings[0].message
    return judgement


def _strikes(run: RunHistory) -> Iterator[tuple[Location, str]]:
    streams = [run.steps, *run.ranks.values()]
    for stream in (stream for stream in streams if stream is not None):
        for line, record in enumerate(stream.records, FIRST_RECORD_LINE):
            if isinstance(record, Fault) and record.event == "struck":
                where = Location(file=stream.path, line=line, run=run.id, step=record.step)
                yield where, f"{record.name}: {record.detail}"


def _findings(claim: Claim, runs: Runs, judgement: Judgement) -> Iterator[Finding]:
    for checker in (MASKS, OUTPUTS, ACCEPTANCE):
        part = checker.function(claim, runs)
        judgement.measured.setdefault("rows", part.measured.get("rows", 0))
        yield from part.findings


def _survived(expected: str, where: Location) -> Finding:
    return Finding(
        anomaly=SURVIVED,
        message=f"expected the planted fault to be caught as {expected}, found nothing amiss",
        where=where,
    )


def _misnamed(expected: str, first: Finding) -> Finding:
    return Finding(
        anomaly=MISNAMED,
        message=f"expected {expected} to be blamed first, found {first.anomaly}: {first.message}",
        where=first.where,
    )


CAUGHT = Checker(
    name="caught",
    roles=("off", "on"),
    needs=("run", "workload", "outputs", "steps", "ranks"),
    seams=(),
    function=check_caught,
)
