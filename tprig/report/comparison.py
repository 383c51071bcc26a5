"""A comparison of two bundles on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tprig.compare import Comparison, Difference, Divergence, RunComparison
from tprig.report.text import one_line, place, shortened

SHOWN_DIFFERENCES = 24
VALUE_LIMIT = 60


def comparison(found: Comparison, differences: Sequence[Difference]) -> RenderableType:
    """Return what a person wants to know first: equal or not, where, and what may explain it."""
    return Group(*_parts(found, differences))


def _parts(found: Comparison, differences: Sequence[Difference]) -> Iterator[RenderableType]:
    if found.runs:
        yield _run_table(found.runs)
    for name, runs in (("A", found.only_a), ("B", found.only_b)):
        if runs:
            yield Text(f"only in bundle {name}: {one_line(', '.join(runs))}", style="yellow")
    yield from _gaps(found.runs)
    if found.divergences:
        yield from _divergence(found.divergences[0])
    yield Text(_conclusion(found), style="bold")
    if differences:
        yield _difference_table(differences)


def _run_table(runs: Sequence[RunComparison]) -> Table:
    table = _table("run", "requests", "rows", "requests that part", "largest logprob difference")
    for run in runs:
        largest = run.largest_logprob_difference
        table.add_row(
            Text(one_line(run.run)),
            str(run.requests),
            str(run.rows),
            Text(str(len(run.divergences)), style="bold red" if run.divergences else "green"),
            "-" if largest is None else f"{largest:.3g}",
        )
    return table


def _gaps(runs: Sequence[RunComparison]) -> Iterator[Text]:
    for run in runs:
        gaps = [
            reason if request == "*" else f"request {request}: {reason}"
            for request, reason in run.not_compared.items()
        ]
        if gaps:
            more = f", and {len(gaps) - 1} more (--json lists all)" if gaps[1:] else ""
            gap = shortened(one_line(f"not all compared: run {run.run}, {gaps[0]}"))
            yield Text(gap + more, style="yellow")


def _divergence(first: Divergence) -> Iterator[Text]:
    row = "" if first.row is None else f", row {first.row}"
    yield Text(
        one_line(f"first difference: run {first.run}, request {first.request}{row}: {first.field}"),
        style="bold red",
    )
    for name, value, where in (("A", first.a, first.where_a), ("B", first.b, first.where_b)):
        yield Text(f"  {name}: {shortened(one_line(value))}  at {place(where)}")
    if first.token_row is not None and first.token_row != first.row:
        yield Text(f"  tokens part at row {first.token_row}")


def _conclusion(found: Comparison) -> str:
    if found.divergences:
        requests = sum(run.requests for run in found.runs)
        return f"different: {len(found.divergences)} of {requests} requests part"
    if found.whole:
        return f"equal: {found.rows} rows"
    if not any(run.requests for run in found.runs):
        return "nothing could be compared"
    return f"no difference in the {found.rows} rows compared, but not everything was compared"


def _difference_table(differences: Sequence[Difference]) -> RenderableType:
    table = _table("what else differs", "A", "B")
    for difference in differences[:SHOWN_DIFFERENCES]:
        table.add_row(Text(one_line(difference.what)), _value(difference.a), _value(difference.b))
    more = len(differences) - SHOWN_DIFFERENCES
    return Group(table, Text(f"and {more} more (--json lists all)")) if more > 0 else table


def _value(value: str | None) -> Text:
    if value is None:
        return Text("not said", style="dim")
    return Text(shortened(one_line(value), VALUE_LIMIT))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
