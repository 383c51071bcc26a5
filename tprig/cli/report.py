"""`tprig report BUNDLE` and `tprig report --compare A B`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tprig.bundle import Bundle
from tprig.cli import compare as comparing
from tprig.cli.opening import opened
from tprig.cli.terminal import write
from tprig.judged import Judged, judge_again
from tprig.report.html import html
from tprig.report.markdown import markdown
from tprig.report.results import claim_results, ctrf, junit, results, test_engine
from tprig.report.text import cut, one_line


def run(root: Path, targets: Mapping[str, Path]) -> int:
    """Write a bundle's reports and return the exit code of `tprig check`.

    Args:
        root: the bundle.
        targets: form -> file; with none, the Markdown page is printed.
    """
    bundle = opened(root)
    judged = judge_again(bundle)
    if not targets:
        write(markdown(bundle, judged.verdicts))
    for form, path in targets.items():
        path.write_text(_rendered(form, bundle, judged), encoding="utf-8")
    return judged.exit_code


def compare(a: Path, b: Path) -> int:
    """Print where two bundles differ first."""
    return comparing.run(a, b, as_json=False)


def _rendered(form: str, bundle: Bundle, judged: Judged) -> str:
    if form == "html":
        return html(bundle, judged.verdicts)
    if form == "markdown":
        return markdown(bundle, judged.verdicts)
    if form in ("annotation", "step-summary"):
        return cut(markdown(bundle, judged.verdicts))
    tests = []
    if judged.verdicts is not None:
        tests = [*results(bundle), *claim_results(judged.verdicts)]
    name = one_line(bundle.root.name)
    if form == "junit":
        return junit(tests, name)
    if form == "ctrf":
        return ctrf(tests, dict(_facts(bundle, judged)))
    return test_engine(tests, bundle.digest or name)


def _facts(bundle: Bundle, judged: Judged) -> Iterator[tuple[str, str]]:
    yield "overall", judged.overall or "damaged"
    if bundle.digest is not None:
        yield "bundle", bundle.digest
