"""Verdicts on a terminal: the table that a run prints last and `tprig check` prints first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tprig import evidence
from tprig.report.text import one_line, place, shortened

STYLES: dict[evidence.VerdictName, str] = {
    "pass": "green",
    "fail": "bold red",
    "unknown": "yellow",
    "expected": "cyan",
    "withdrawn": "yellow",
    "not-applicable": "dim",
}


def verdict_table(verdicts: Sequence[evidence.Verdict]) -> Table:
    """Return one line per claim: the claim, its verdict, rows judged, the first failure."""
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    table.add_column("claim", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("first failure", overflow="fold")
    for verdict in verdicts:
        table.add_row(
            Text(one_line(verdict.claim)),
            Text(verdict.verdict, style=STYLES[verdict.verdict]),
            Text(rows_judged(verdict)),
            Text(first_failure(verdict)),
        )
    return table


def summary(verdicts: Sequence[evidence.Verdict]) -> RenderableType:
    """Return the table of all claims and, below it, how many came out how."""
    return Group(verdict_table(verdicts), Text(tally(verdicts), style="bold"))


def counter_example(verdict: evidence.Verdict) -> RenderableType | None:
    """Return a claim's first counter-example in full, with its place; None when it has none."""
    if not verdict.findings:
        return None
    finding = verdict.findings[0]
    return Group(
        Text.assemble(
            (one_line(finding.anomaly), "bold red"), " in ", (one_line(verdict.claim), "bold")
        ),
        Text(f"  {one_line(finding.message)}"),
        Text(f"  at {place(finding.where)}", style="dim"),
    )


def rows_judged(verdict: evidence.Verdict) -> str:
    """Return how many rows the claim rests on, or a dash when its checker counts none."""
    rows = verdict.measured.get("rows")
    return "-" if rows is None else str(rows)


def first_failure(verdict: evidence.Verdict) -> str:
    """Return the first failure and its place in a line; the reason where nothing was found."""
    if verdict.findings:
        finding = verdict.findings[0]
        return f"{one_line(finding.anomaly)} at {place(finding.where)}"
    return "" if verdict.verdict == "pass" else shortened(one_line(verdict.reason))


def tally(verdicts: Sequence[evidence.Verdict]) -> str:
    """Return `3 pass, 1 fail`, the gravest first."""
    counts = Counter(verdict.verdict for verdict in verdicts)
    order: tuple[evidence.VerdictName, ...] = (
        "fail",
        "unknown",
        "withdrawn",
        "expected",
        "pass",
        "not-applicable",
    )
    return ", ".join(f"{counts[name]} {name}" for name in order if counts[name]) or "no claims"
