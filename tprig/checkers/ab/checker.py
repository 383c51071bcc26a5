"""Judges what a change costs: whether a loss beyond the margin is proven, ruled out, or open."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tprig.checkers.ab.analysis import Analysis, analyse
from tprig.checkers.ab.chain import breaks, copies_role, role, roles
from tprig.checkers.ab.copies import copied, copy_after_proposal_ms, inconsistent
from tprig.checkers.ab.facts import differences, unforeseen
from tprig.checkers.ab.metrics import METRICS
from tprig.checkers.ab.order import draw_order
from tprig.checkers.ab.pairs import Pair, pairs_of
from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.wording import counted
from tprig.evidence import Claim, Comparison, Finding, Location
from tprig.history import EngineHistory, RunHistory


def check_cost(claim: Claim, runs: Runs) -> Judgement:
    """Hold the record against its plan, then the arms against each other."""
    judgement = Judgement()
    comparison = claim.comparison
    if comparison is None:
        judgement.missing.append("the claim has no comparison: nothing says how to judge it")
        return judgement
    judgement.findings += _altered(claim, comparison, runs)
    judgement.missing += _unplanned(claim, comparison)
    judgement.missing += _unsampled(comparison, runs)
    judgement.missing += _arms(comparison, runs, judgement.notes)
    pairs = pairs_of(comparison, runs)
    void = [pair for pair in pairs if pair.void]
    judgement.notes |= {f"void pair {pair.index}": "; ".join(pair.void) for pair in void}
    judgement.measured = {"pairs": len(pairs) - len(void), "void pairs": len(void)}
    judgement.measured["rows"] = _tokens(pairs)
    if not judgement.findings and not judgement.missing:
        _judge(comparison, pairs, runs, judgement)
    return judgement


def _judge(comparison: Comparison, pairs: Sequence[Pair], runs: Runs, judgement: Judgement) -> None:
    analyses = analyse(comparison, pairs)
    for name, analysis in analyses.items():
        judgement.notes[name] = told(analysis, comparison)
    for name in comparison.gates:
        if name not in analyses:
            judgement.missing.append(f"{name} could not be compared: too few pairs have it")
            continue
        analysis = analyses[name]
        if analysis.decision == "NO-GO":
            judgement.findings.append(_regression(comparison, analysis, runs))
        elif analysis.decision == "INCONCLUSIVE":
            judgement.missing.append(_open(comparison, analysis))
    judgement.notes |= _diagnostics(runs)


def percent(log_ratio: float) -> str:
    """A gain as a change in percent: `-2.1%`."""
    return f"{100 * math.expm1(log_ratio):+.2f}%"


def told(analysis: Analysis, comparison: Comparison) -> str:
    """An analysis in a line."""
    low, high = analysis.interval.low, analysis.interval.high
    between = f"{percent(low)} to {percent(high)}"
    lag = "unknown" if analysis.lag_one is None else f"{analysis.lag_one:+.2f}"
    return (
        f"{analysis.decision}: {percent(analysis.mean.estimate)} "
        f"({100 * comparison.confidence:g}% interval {between}; unadjusted "
        f"{percent(analysis.unadjusted.low)} to {percent(analysis.unadjusted.high)}; expanded "
        f"{percent(analysis.expanded.low)} to {percent(analysis.expanded.high)}; plain percentile "
        f"{percent(analysis.percentile.low)} to {percent(analysis.percentile.high)}); "
        f"{len(analysis.pairs)} pairs, deviation {100 * analysis.mean.deviation:.2f}%, order "
        f"{percent(analysis.order_effect)}, lag-1 {lag}, "
        f"resolves {100 * analysis.resolvable:.2f}%"
    )


def _regression(comparison: Comparison, analysis: Analysis, runs: Runs) -> Finding:
    if analysis.mean.estimate < 0:
        bound = f"a loss of at most {100 * comparison.margin:g}%"
    else:
        bound = f"a change of at most {100 * comparison.margin:g}%"
    message = (
        f"expected {bound} of {analysis.metric} ({METRICS[analysis.metric]}), found "
        f"{percent(analysis.mean.estimate)}, and by the {100 * comparison.confidence:g}% interval "
        f"between {percent(analysis.interval.low)} and {percent(analysis.interval.high)}"
    )
    worst = min(zip(analysis.gains, analysis.pairs, strict=True))[1]
    run = runs[role(worst, "b")]
    where = Location(file=f"runs/{run.id}/steps.jsonl", run=run.id)
    return Finding(anomaly="cost.regression", message=message, where=where)


def _open(comparison: Comparison, analysis: Analysis) -> str:
    if analysis.needed is None:
        remedy = "no affordable number of pairs would decide"
    else:
        remedy = f"{analysis.needed} pairs would decide, were the estimate true"
    return (
        f"INCONCLUSIVE: {analysis.metric} {percent(analysis.mean.estimate)}, between "
        f"{percent(analysis.interval.low)} and {percent(analysis.interval.high)}; the margin is "
        f"{100 * comparison.margin:g}%; {remedy}"
    )


def _altered(claim: Claim, comparison: Comparison, runs: Runs) -> Iterator[Finding]:
    for found in breaks(claim, runs):
        yield Finding(anomaly="cost.record", message=found.message, where=found.where)
    for name in roles(comparison):
        run = runs.get(name)
        for text in inconsistent(run) if run is not None else ():
            where = Location(file=f"runs/{name}/ranks/rank0.jsonl", run=run.id if run else None)
            yield Finding(anomaly="cost.record", message=text, where=where)


def _unplanned(claim: Claim, comparison: Comparison) -> Iterator[str]:
    """What the plan itself lacks: an order that no seed gives may have been chosen."""
    try:
        drawn = draw_order(len(comparison.order), comparison.seed)
    except ValueError as error:
        yield f"the plan's order: {error}"
        return
    if drawn != comparison.order:
        yield f"expected the order that seed {comparison.seed} draws, found another one"
    wanted, cast = set(roles(comparison)), set(claim.runs)
    if wanted != cast:
        text = ", ".join(sorted(wanted ^ cast)[:4])
        yield f"expected a run for each planned role and no other, found that {text} differ"


def _unsampled(comparison: Comparison, runs: Runs) -> Iterator[str]:
    for name in roles(comparison):
        if name not in runs:
            yield f"{name} was never measured, or its run was taken out"
        elif runs[name].sample is None:
            yield f"run {runs[name].id} has no sample.json: nothing ties it to the plan"


def _arms(comparison: Comparison, runs: Runs, notes: dict[str, str]) -> Iterator[str]:
    """Two persistent engines, which differ in what they may differ in and nothing else."""
    engines: dict[str, EngineHistory] = {}
    for arm in ("a", "b"):
        mine = {run.engine.id: run.engine for run in _of(arm, runs) if run.engine is not None}
        if len(mine) != 1:
            yield f"expected one engine for arm {arm}, found {counted(len(mine), 'engine')}"
        else:
            (engines[arm],) = mine.values()
    if len(engines) < 2:
        return
    a, b = engines["a"], engines["b"]
    if a.id == b.id:
        yield f"expected an engine for each arm, found {a.id} in both"
    notes["arms differ in"] = _told(differences(a, b))
    yield from unforeseen(comparison, a, b)


def _of(arm: str, runs: Runs) -> list[RunHistory]:
    return [run for name, run in runs.items() if name.endswith(f".{arm}")]


def _told(found: Mapping[str, tuple[str, str]]) -> str:
    parts = [f"{name} ({a} and {b})" for name, (a, b) in found.items()]
    return ", ".join(parts) or "nothing that is recorded of them"


def _tokens(pairs: Sequence[Pair]) -> int:
    return sum(m.work.tokens for p in pairs if not p.void for m in (p.a, p.b) if m is not None)


def _diagnostics(runs: Runs) -> Iterator[tuple[str, str]]:
    for arm in ("a", "b"):
        run = runs.get(copies_role(arm))
        total = copied(run) if run is not None else None
        if run is None or total is None:
            continue
        yield f"copies {arm}", str(total)
        late_ms = sorted(copy_after_proposal_ms(run))
        if late_ms:
            middle = late_ms[len(late_ms) // 2]
            yield (
                f"overlap {arm}",
                (
                    f"the copy ends {middle:+.3f} ms from the proposal's end (median of "
                    f"{counted(len(late_ms), 'step')}, {late_ms[0]:+.3f} to {late_ms[-1]:+.3f})"
                ),
            )


COST = Checker(
    name="cost",
    roles=(),
    needs=("run", "workload", "outputs", "steps"),
    seams=(),
    function=check_cost,
)
