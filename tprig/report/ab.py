"""Comparisons shown: per metric the change, its intervals and the decision; every pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tprig import evidence
from tprig.bundle import Bundle
from tprig.checkers.ab.analysis import Analysis, analyse
from tprig.checkers.ab.checker import percent
from tprig.checkers.ab.decide import pairs_to_resolve
from tprig.checkers.ab.intervals import Interval
from tprig.checkers.ab.pairs import Pair, pairs_of
from tprig.checkers.gaps import cast
from tprig.report.text import code, one_line

STYLES = {"GO": "green", "NO-GO": "bold red", "INCONCLUSIVE": "yellow"}
CALIBRATED = 0.05
"""An A/A says how many pairs would tell a loss of this fraction from none."""


def comparisons(bundle: Bundle) -> Iterator[RenderableType]:
    """Tables of every comparison that the bundle planned."""
    for claim, how in _planned(bundle):
        pairs = pairs_of(how, cast(claim, bundle.runs))
        analyses = analyse(how, pairs)
        yield Text(f"{one_line(claim.id)}: {one_line(how.a)} against {one_line(how.b)}")
        yield pair_table(how, pairs)
        yield metric_table(how, list(analyses.values()))
        yield from (Text(line) for line in _lines(how, analyses.get("throughput")))


def _planned(bundle: Bundle) -> Iterator[tuple[evidence.Claim, evidence.Comparison]]:
    if bundle.damaged or bundle.plan is None:
        return
    for claim in bundle.plan.claims:
        if claim.comparison is not None:
            yield claim, claim.comparison


def metric_table(how: evidence.Comparison, analyses: Sequence[Analysis]) -> Table:
    """A line per metric; a negative change is a loss of arm b, whatever the metric's unit."""
    level = f"{100 * how.confidence:g}%"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("metric")
    for name in ("change", level, f"{level} unadjusted", "t-expanded", "percentile"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("decision", no_wrap=True)
    for each in analyses:
        decides = each.metric in how.gates
        table.add_row(
            Text(each.metric, style="bold" if decides else ""),
            percent(each.mean.estimate),
            _between(each.interval),
            _between(each.unadjusted),
            _between(each.expanded),
            _between(each.percentile),
            Text(each.decision + ("" if decides else " (told)"), style=STYLES[each.decision]),
        )
    return table


def _between(interval: Interval) -> str:
    return f"{percent(interval.low)} to {percent(interval.high)}"


def pair_table(how: evidence.Comparison, pairs: Sequence[Pair]) -> Table:
    """A line per pair, in order of time."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("pair", "order", "at, s", "a tokens/s", "b tokens/s", "b / a"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("void")
    for pair in pairs:
        a, b = (None if arm is None else arm.values["throughput"] for arm in (pair.a, pair.b))
        ratio = "-" if a is None or b is None else f"{b / a:.4f}"
        planted = [name for name, struck in how.planted.items() if pair.index in struck]
        at = "-" if pair.began_ns is None else f"{pair.began_ns / 1e9:.1f}"
        remark = "; ".join([*(f"planted {name}" for name in planted), *pair.void])
        values = ("-" if value is None else f"{value:.2f}" for value in (a, b))
        table.add_row(str(pair.index), pair.order, at, *values, ratio, Text(one_line(remark)))
    return table


def _lines(how: evidence.Comparison, found: Analysis | None) -> Iterator[str]:
    if found is None:
        yield "too few pairs of both orders that are not void: nothing was compared"
        return
    lag = "unknown" if found.lag_one is None else f"{found.lag_one:+.2f}"
    yield (
        f"throughput: deviation of a pair {100 * found.mean.deviation:.2f}%, effect of order "
        f"{percent(found.order_effect)}, lag-1 correlation {lag}"
    )
    needed = pairs_to_resolve(CALIBRATED, found.mean, how.confidence)
    pairs = "no affordable number of pairs" if needed is None else f"{needed} pairs"
    yield (
        f"{len(found.pairs)} such pairs resolve a change of {100 * found.resolvable:.2f}% (4 times "
        f"in 5); {pairs} would resolve {100 * CALIBRATED:g}%"
    )
    if found.decision == "INCONCLUSIVE" and found.needed is not None:
        yield f"{found.needed} pairs would decide, were the estimate true"


def page(bundle: Bundle) -> str:
    """The comparisons as Markdown; empty when there is none."""
    return "\n\n".join(
        "\n".join(_page_lines(claim, how, bundle)) for claim, how in _planned(bundle)
    )


def _page_lines(claim: evidence.Claim, how: evidence.Comparison, bundle: Bundle) -> Iterator[str]:
    pairs = pairs_of(how, cast(claim, bundle.runs))
    void = sum(bool(pair.void) for pair in pairs)
    yield (
        f"{code(claim.id)}: {code(how.a)} against {code(how.b)}, {len(pairs)} pairs, {void} void; "
        f"a negative change is a loss, the margin is {100 * how.margin:g}%"
    )
    yield ""
    yield f"| metric | change | {100 * how.confidence:g}% interval | plain percentile | decision |"
    yield "|---|---:|---:|---:|---|"
    for each in analyse(how, pairs).values():
        decides = each.metric in how.gates
        decision = f"**{each.decision}**" if decides else f"{each.decision} (told)"
        yield (
            f"| {each.metric} | {percent(each.mean.estimate)} | {_between(each.interval)} "
            f"| {_between(each.percentile)} | {decision} |"
        )


def document(bundle: Bundle, verdicts: evidence.Verdicts | None) -> dict[str, object]:
    """All of it, for programs."""
    return {
        "digest": bundle.digest,
        "comparisons": {
            claim.id: analyse(how, pairs_of(how, cast(claim, bundle.runs)))
            for claim, how in _planned(bundle)
        },
        "verdicts": verdicts.verdicts if verdicts is not None else [],
        "problems": bundle.problems,
    }
