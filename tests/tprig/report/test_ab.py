"""Comparisons on a page: every metric, and nothing of a bundle that is not inert."""

from __future__ import annotations

from pathlib import Path

from tests.fakes import bundles, histories, measured
from tests.tprig.checkers.ab.designs import comparison
from tprig.bundle import load
from tprig.judged import judge_again
from tprig.report.ab import page
from tprig.report.markdown import markdown


def write(root: Path, case: measured.Measured) -> Path:
    return bundles.write(root, case.runs.values(), histories.plan([case.claim]))


def test_every_metric_has_a_line(tmp_path: Path) -> None:
    root = write(tmp_path / "b", measured.measured(slowness=measured.steady(loss=0.1)))
    bundle = load(root)
    text = page(bundle)
    lines = text.splitlines()
    assert lines[0].startswith("`ab-c16/cost`: `replay off` against `replay on`, 10 pairs, 0 void")
    assert [line.split(" | ")[0] for line in lines[4:]] == [
        *("| throughput", "| step_mean", "| step_p50", "| step_p95", "| step_p99"),
        *("| first_token", "| inter_token"),
    ]
    assert lines[4].endswith("| **NO-GO** |")
    assert lines[5].endswith("| NO-GO (told) |")
    assert text in markdown(bundle, judge_again(bundle).verdicts)


def test_foreign_words_are_inert(tmp_path: Path) -> None:
    root = write(tmp_path / "b", measured.measured(comparison(a="<b>@me</b>")))
    assert "`<b>@me</b>`" in page(load(root))


def test_a_bundle_that_measured_nothing_has_no_such_part(tmp_path: Path) -> None:
    assert page(load(bundles.pair(tmp_path / "b"))) == ""
