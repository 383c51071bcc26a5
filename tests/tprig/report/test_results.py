"""JUnit, CTRF and Test Engine JSON, of whole runs and of those that a crash cut short."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.fakes import bundles
from tprig.bundle import load
from tprig.cli import main
from tprig.judged import verdicts_of
from tprig.report.results import TestResult as Result
from tprig.report.results import claim_results, ctrf, junit, results, test_engine

TESTS = [
    Result("a.py::passes", "passed", 10.0, 1.5),
    Result("a.py::fails[x<y&\x1b\ufffe]", "failed", 12.0, 0.5, "E  boom <&>\x00\n]]>"),
    Result("a.py::errs", "error", 13.0, 0.25, "no lease"),
    Result("a.py::skips", "skipped", 14.0, 0.0, "CUDA only"),
    Result("a.py::hangs", "interrupted", 15.0, None),
    Result("b/c.py::never", "not-run", None, None),
]


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)[0]  # noqa: S314 (our own)


def test_junit_counts_what_never_ran_as_an_error() -> None:
    suite = parsed(junit(TESTS, "run"))
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "6", "failures": "1", "errors": "3", "skipped": "1"}
    never = suite[5]
    assert (never.get("classname"), never.get("time")) == ("b.c", None)
    assert never[0].get("message") == "it was planned and never ran"


def test_no_word_of_a_test_breaks_the_xml() -> None:
    fails = parsed(junit(TESTS, "run"))[1]
    assert fails.get("name") == r"fails[x<y&\x1b\ufffe]"
    assert fails[0].text == "E  boom <&>\\x00\n]]>"


def test_ctrf_has_every_test_once_and_its_summary_adds_up() -> None:
    found = json.loads(ctrf(TESTS, {"build": "1"}))["results"]
    assert [each["status"] for each in found["tests"]] == [
        "passed", "failed", "failed", "skipped", "other", "pending",
    ]  # fmt: skip
    names = ("passed", "failed", "skipped", "other", "pending")
    assert sum(found["summary"][name] for name in names) == found["summary"]["tests"] == 6
    assert (found["summary"]["start"], found["summary"]["stop"]) == (10_000, 15_000)


def test_test_engine_gives_a_test_of_a_run_one_id() -> None:
    first = json.loads(test_engine(TESTS, "run-1"))
    assert first == json.loads(test_engine(TESTS, "run-1"))
    other = json.loads(test_engine(TESTS, "run-2"))
    assert {each["id"] for each in first}.isdisjoint({each["id"] for each in other})
    assert [each["result"] for each in first] == [
        "passed", "failed", "failed", "skipped", "unknown", "unknown",
    ]  # fmt: skip
    assert first[1]["failure_expanded"][0]["expanded"][0] == "E  boom <&>\x00"


@pytest.mark.parametrize("lines", [1, 4, 6, 7, 17])
def test_a_ledger_that_was_cut_short_still_gives_every_planned_test(
    tmp_path: Path, lines: int
) -> None:
    root = bundles.pair(tmp_path / "bundle", sealed=False)
    ledger = root / "ledger.jsonl"
    kept = ledger.read_bytes().splitlines(keepends=True)[:lines]
    ledger.write_bytes(b"".join(kept) + b'{"type":"te')
    found = results(load(root))
    plan = load(root).plan
    assert plan is not None
    assert [each.test for each in found] == plan.tests
    passed = sum(b'"finished"' in line for line in kept)
    assert sum(each.result == "passed" for each in found) == passed
    assert parsed(junit(found, "x")).get("errors") == str(len(plan.tests) - passed)


def test_a_claim_that_fails_is_not_hidden_by_a_test_that_passed(tmp_path: Path) -> None:
    root = bundles.pair(tmp_path / "bundle")
    line, _ = next(bundles.emissions(root, "on"))
    bundles.edit(root, "runs/on/outputs.jsonl", line, lambda r: r["rows"][0].update(rank=99))
    found = {each.test: each for each in claim_results(verdicts_of(load(root)))}
    assert found["claims::outputs/tp1"].result == "failed"
    assert "output.ranks at runs/on/outputs.jsonl" in found["claims::outputs/tp1"].detail


def test_every_form_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    root = bundles.pair(tmp_path / "bundle")
    forms = ("html", "markdown", "junit", "ctrf", "test-engine", "annotation", "step-summary")
    words = [word for form in forms for word in (f"--{form}", str(tmp_path / form))]
    assert main(["report", str(root), *words]) == 0
    assert parsed((tmp_path / "junit").read_text()).get("failures") == "0"
    assert (tmp_path / "markdown").read_text() == (tmp_path / "annotation").read_text()
    assert (tmp_path / "html").read_text().startswith("<!doctype html>")


def test_nothing_of_a_damaged_bundle_is_given_as_a_result(tmp_path: Path) -> None:
    root = bundles.pair(tmp_path / "bundle")
    (root / "environment.json").write_bytes(b"{}")
    assert main(["report", str(root), "--junit", str(tmp_path / "junit")]) == 3
    assert parsed((tmp_path / "junit").read_text()).get("tests") == "0"


def test_two_bundles_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = bundles.pair(tmp_path / "a"), bundles.pair(tmp_path / "b")
    line, _ = next(bundles.emissions(b, "on"))
    bundles.edit(b, "runs/on/outputs.jsonl", line, lambda r: r["rows"][0].update(rank=99))
    assert main(["compare", str(a), str(b)]) == 1
    printed = capsys.readouterr().out
    assert main(["report", "--compare", str(a), str(b)]) == 1
    assert capsys.readouterr().out == printed
    assert main(["report", str(a), str(b)]) == 4
    assert main(["report", "--compare", str(a)]) == 4
