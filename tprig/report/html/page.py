"""Gathers what the page shows, and renders it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jinja2

from tprig import evidence
from tprig.bundle import Bundle
from tprig.checkers.anomalies import ANOMALIES, blame
from tprig.judged import overall, unpassed
from tprig.report.html.rows import DrawnRow, drawn_rows, run_of
from tprig.report.html.timeline import Timeline, timeline
from tprig.report.summary import rows_judged, tally
from tprig.report.text import one_line, place, shortened

EXAMPLES_SHOWN = 5
TIMELINES_SHOWN = 4


@dataclass(frozen=True)
class Example:
    """One claim's first counter-example."""

    claim: str
    anomaly: str
    definition: str
    look_at: str
    message: str
    where: str
    rows: Sequence[DrawnRow]


@dataclass(frozen=True)
class Kill:
    """A planted fault, and what became of it."""

    claim: str
    fault: str
    anomaly: str
    verdict: str
    told: str


def html(bundle: Bundle, verdicts: evidence.Verdicts | None) -> str:
    """Return the page. Everything that comes from the bundle is escaped, and made printable.

    Args:
        bundle: as it was loaded.
        verdicts: as judged from that bundle's evidence; None when it is damaged, and so not judged.
    """
    sizes = {c.id: c.tensor_parallel_size for c in (bundle.plan.claims if bundle.plan else ())}
    return _template().render(
        bundle=bundle,
        verdicts=[] if verdicts is None else verdicts.verdicts,
        overall="damaged" if verdicts is None else overall(bundle, verdicts),
        tally="" if verdicts is None else tally(verdicts.verdicts),
        sizes=sizes,
        examples=[] if verdicts is None else list(_examples(bundle, verdicts))[:EXAMPLES_SHOWN],
        timelines=[] if verdicts is None else list(_timelines(bundle, verdicts)),
        kills=[] if verdicts is None else list(_kills(bundle, verdicts)),
        unpassed={} if verdicts is None else unpassed(bundle),
        engines=[] if verdicts is None else list(bundle.engines.values()),
        environment=None if verdicts is None else bundle.environment,
        plan=None if verdicts is None else bundle.plan,
    )


def _examples(bundle: Bundle, verdicts: evidence.Verdicts) -> Iterator[Example]:
    failing = [v for v in verdicts.verdicts if v.findings]
    for verdict in sorted(
        failing, key=lambda v: (v.verdict != "fail", blame(v.findings[0].anomaly))
    ):
        finding = verdict.findings[0]
        anomaly = ANOMALIES.get(finding.anomaly)
        yield Example(
            claim=verdict.claim,
            anomaly=finding.anomaly,
            definition=anomaly.definition if anomaly else "",
            look_at=anomaly.look_at if anomaly else "",
            message=shortened(one_line(finding.message)),
            where=place(finding.where),
            rows=drawn_rows(bundle, finding.where),
        )


def _timelines(bundle: Bundle, verdicts: evidence.Verdicts) -> Iterator[Timeline]:
    """Of the runs in which a finding about ranks lies."""
    families = ("collective.", "rank.", "decision.")
    findings = [f for v in verdicts.verdicts for f in v.findings if f.anomaly.startswith(families)]
    named = dict.fromkeys(f.where.run or run_of(f.where.file) for f in findings)
    for run in list(named)[:TIMELINES_SHOWN]:
        drawn = timeline(bundle.runs[run]) if run in bundle.runs else None
        if drawn is not None:
            yield drawn


def _kills(bundle: Bundle, verdicts: evidence.Verdicts) -> Iterator[Kill]:
    by_claim = {verdict.claim: verdict for verdict in verdicts.verdicts}
    for claim in bundle.plan.claims if bundle.plan else ():
        verdict = by_claim.get(claim.id)
        if claim.checker != "caught" or verdict is None:
            continue
        runs = [bundle.runs[run] for run in claim.runs.values() if run in bundle.runs]
        faults = sorted({fault for r in runs if r.run is not None for fault in r.run.faults})
        yield Kill(
            claim=claim.id,
            fault=", ".join(faults) or "-",
            anomaly=", ".join(claim.anomalies),
            verdict="caught" if verdict.verdict == "pass" else verdict.verdict,
            told=shortened(one_line(verdict.notes.get("caught") or verdict.reason), 200),
        )


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tprig.report.html", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"line": lambda value: one_line(str(value)), "rows": rows_judged}
    return environment.get_template("page.html.j2")
