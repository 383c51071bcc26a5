"""Judges whether a planted fault was caught: by the anomaly that names it, and by it first.

The checkers that the claim names are applied to the runs as to any other. A fault that none of
them sees has survived; one for which another anomaly is blamed first was misnamed. Both are
failures of the checkers, not of the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tprig.checkers.acceptance import ACCEPTANCE
from tprig.checkers.anomalies import blame
from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.collectives import RANK_ORDER
from tprig.checkers.engine import ENGINE
from tprig.checkers.masks import MASKS
from tprig.checkers.oracle import ORACLE
from tprig.checkers.outputs import OUTPUTS
from tprig.checkers.parity import PARITY
from tprig.evidence import Claim, Fault, Finding, Location, Step
from tprig.history import FIRST_RECORD_LINE, RunHistory

SURVIVED = "fault.survived"
MISNAMED = "fault.misnamed"

JUDGES: Mapping[str, Checker] = {
    checker.name: checker
    for checker in (MASKS, OUTPUTS, ACCEPTANCE, ORACLE, RANK_ORDER, ENGINE, PARITY)
}
"""The checkers that a claim on a planted fault may name."""
COMPARING = {"outputs", "acceptance", "parity"}
"""Those of them that hold two runs against each other; the others judge the faulty one alone."""


def check_caught(claim: Claim, runs: Runs) -> Judgement:
    """Judge the run with the fault, the last role that the claim casts.

    Measured: `rows` of the faulty run, `strikes` of the fault, `findings` of the checkers. Noted:
    what it `struck`, the anomaly `blamed` first, the checkers that have `seen` it with what each
    would blame first, the `time to detection`, and the finding by which it was `caught`.
    """
    faulty = list(claim.runs)[-1]
    run = runs.get(faulty)
    struck = list(strikes(run)) if run is not None else []
    judgement = Judgement()
    findings = list(_findings(claim, runs, faulty, judgement))
    findings.sort(key=lambda found: blame(found[1].anomaly))
    judgement.measured |= {"strikes": len(struck), "findings": len(findings)}
    if run is None or not struck:
        judgement.missing.append("the fault never struck: nothing was altered")
        return judgement
    judgement.notes["struck"] = "; ".join(
        dict.fromkeys(f"{fault.name}: {fault.detail}" for _, fault in struck)
    )
    if not findings:
        judgement.findings.append(_survived(claim.anomalies[0], struck[0][0]))
        return judgement
    first = findings[0][1]
    judgement.notes |= {"blamed": first.anomaly, "seen": _seen(findings)}
    judgement.notes["time to detection"] = _time_to_detection(run, struck[0][0], first)
    if first.anomaly != claim.anomalies[0]:
        judgement.findings.append(_misnamed(claim.anomalies[0], first))
    else:
        judgement.notes["caught"] = first.message
    return judgement


def strikes(run: RunHistory) -> Iterator[tuple[Location, Fault]]:
    """Where a planted fault altered something, and what it said of it."""
    streams = [run.steps, *run.ranks.values()]
    for stream in (stream for stream in streams if stream is not None):
        for line, record in enumerate(stream.records, FIRST_RECORD_LINE):
            if isinstance(record, Fault) and record.event == "struck":
                where = Location(file=stream.path, line=line, run=run.id, step=record.step)
                yield where, record


def _findings(
    claim: Claim, runs: Runs, faulty: str, judgement: Judgement
) -> Iterator[tuple[str, Finding]]:
    """What each checker finds, by its name."""
    mine = {role: run for role, run in runs.items() if role == faulty}
    for name in claim.judges:
        part = JUDGES[name].function(claim, runs if name in COMPARING else mine)
        judgement.measured.setdefault("rows", part.measured.get("rows", 0) or len(runs))
        yield from ((name, finding) for finding in part.findings)


def _seen(findings: Sequence[tuple[str, Finding]]) -> str:
    """`masks: mask.absent (2), outputs: output.tokens (1)`, from findings in the order of blame."""
    first: dict[str, str] = {}
    for name, finding in findings:
        first.setdefault(name, finding.anomaly)
    counts = Counter(name for name, _ in findings)
    return ", ".join(f"{name}: {anomaly} ({counts[name]})" for name, anomaly in first.items())


def _time_to_detection(run: RunHistory, struck: Location, first: Finding) -> str:
    """Steps, and the time that they took, from the strike to what shows it; or how it ended."""
    steps = [r for r in (run.steps.records if run.steps else ()) if isinstance(r, Step)]
    shown = first.where.step
    if shown is None or struck.step is None or shown < struck.step or shown >= len(steps):
        events = run.engine.events if run.engine is not None else None
        ends = [e for e in (events.records if events else ()) if e.event in ENDS]
        return f"{ends[0].event} {ends[0].at_ns / 1e9:.1f} s after launch" if ends else "run"
    elapsed_ns = steps[shown].end_ns - steps[struck.step].start_ns
    return f"{shown - struck.step} steps, {elapsed_ns / 1e9:.2f} s"


ENDS = {"crashed", "deadline", "remains", "refused", "leaked"}
"""The events of an engine at which a fault of it shows."""


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
"""Of a run with replay on, held against a clean one with replay off."""
CAUGHT_PARITY = replace(CAUGHT, name="caught_parity", roles=("tp1", "tp2"))
"""Of a run at TP2, held against a clean one at TP1."""
CAUGHT_LOST = replace(CAUGHT, name="caught_lost", roles=("on",), needs=("workload", "events"))
"""Of a run whose engine may be lost."""
