"""What became of each test: JUnit XML, CTRF and Buildkite Test Engine's JSON.

All three are made from a stream that was flushed as things happened, so they can be had after a
crash, and hold the tests that never ran.
"""

from __future__ import annotations

import json
import uuid
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tprig import evidence
from tprig.bundle import Bundle
from tprig.bundle.files import printable
from tprig.report.text import place

ResultName = Literal["passed", "failed", "error", "skipped", "interrupted", "not-run"]

_NAMESPACE = uuid.UUID("6f1c2f0e-7b0a-5c55-9d3e-2f6f6d1a7c11")


@dataclass(frozen=True)
class TestResult:
    """One planned test.

    Attributes:
        test: pytest's node id.
        result: `not-run` where it was planned and never began.
        start_s: seconds since the epoch; None where it never began.
        duration_s: None where it never ended.
        detail: the failure, or why it was skipped.
    """

    __test__ = False

    test: str
    result: ResultName
    start_s: float | None
    duration_s: float | None
    detail: str = ""

    @property
    def file(self) -> str:
        """The file it is in."""
        return self.test.partition("::")[0]

    @property
    def name(self) -> str:
        """What follows the file's name."""
        return self.test.partition("::")[2] or self.test

    @property
    def ran(self) -> bool:
        """It came to an end of its own."""
        return self.result not in ("interrupted", "not-run")


def results(bundle: Bundle) -> list[TestResult]:
    """Return what the ledger of a bundle tells of each planned test, whole or cut short."""
    events = bundle.ledger.records if bundle.ledger else ()
    started = {event.test: event.at for event in events if event.event == "started"}
    finished = {event.test: event for event in events if event.event == "finished"}
    return [
        TestResult(
            test=test,
            result=_result(test in started, finished[test].outcome if test in finished else None),
            start_s=_seconds(started.get(test)),
            duration_s=_between(started.get(test), finished[test].at if test in finished else None),
            detail=finished[test].detail if test in finished else "",
        )
        for test in (bundle.plan.tests if bundle.plan else sorted(started))
    ]


_OF_VERDICT: dict[evidence.VerdictName, ResultName] = {
    "pass": "passed",
    "expected": "passed",
    "fail": "failed",
    "unknown": "error",
    "withdrawn": "skipped",
    "not-applicable": "skipped",
}


def claim_results(verdicts: evidence.Verdicts) -> list[TestResult]:
    """Return each claim as a test of its own: a test that passed may rest on a claim that fails.

    A claim that is undecided is an error; that it does not apply, or was withdrawn, a skip.
    """
    return [
        TestResult(f"claims::{each.claim}", _OF_VERDICT[each.verdict], None, None, _why(each))
        for each in verdicts.verdicts
    ]


def _why(verdict: evidence.Verdict) -> str:
    if not verdict.findings:
        return "" if verdict.verdict == "pass" else verdict.reason
    finding = verdict.findings[0]
    return f"{finding.anomaly} at {place(finding.where)}: {finding.message}"


def _result(started: bool, outcome: ResultName | None) -> ResultName:  # noqa: FBT001
    if outcome is not None:
        return outcome
    return "interrupted" if started else "not-run"


def _seconds(at: str | None) -> float | None:
    try:
        return None if at is None else datetime.fromisoformat(at).timestamp()
    except ValueError:
        return None


def _between(start: str | None, end: str | None) -> float | None:
    first, last = _seconds(start), _seconds(end)
    return None if first is None or last is None else max(0.0, last - first)


# --- JUnit --------------------------------------------------------------------------------------


def junit(found: Sequence[TestResult], suite: str) -> str:
    """Return JUnit XML. A test that never ran, or did not come to its end, is an error in it."""
    counts = Counter(_junit_kind(each) for each in found)
    total_s = sum(each.duration_s or 0.0 for each in found)
    root = ET.Element("testsuites")
    element = ET.SubElement(
        root,
        "testsuite",
        name=printable(suite),
        tests=str(len(found)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time=f"{total_s:.3f}",
    )
    for each in found:
        _case(element, each)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _case(suite: ET.Element, each: TestResult) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        classname=printable(each.file.removesuffix(".py").replace("/", ".")),
        name=printable(each.name),
        file=printable(each.file),
    )
    if each.duration_s is not None:
        case.set("time", f"{each.duration_s:.3f}")
    kind = _junit_kind(each)
    if kind is not None:
        text = _safe(each.detail) or _WORDS[each.result]
        child = ET.SubElement(case, kind, message=(text.splitlines() or [""])[-1][:300])
        child.text = text


_WORDS = {
    "failed": "it failed",
    "error": "its setup or teardown failed",
    "skipped": "it was skipped",
    "interrupted": "it began and did not come to its end",
    "not-run": "it was planned and never ran",
}


def _junit_kind(each: TestResult) -> str | None:
    kinds = {"passed": None, "failed": "failure", "skipped": "skipped"}
    return kinds.get(each.result, "error")


def _safe(text: str) -> str:
    """Without what XML cannot hold."""
    return "\n".join(map(printable, text.splitlines()))


# --- CTRF ---------------------------------------------------------------------------------------

_CTRF = {
    "passed": "passed",
    "failed": "failed",
    "error": "failed",
    "skipped": "skipped",
    "interrupted": "other",
    "not-run": "pending",
}


def ctrf(found: Sequence[TestResult], environment: dict[str, str]) -> str:
    """Return the Common Test Report Format (ctrf.io); unknown durations are 0, as it wants."""
    statuses = Counter(_CTRF[each.result] for each in found)
    begun = [each.start_s for each in found if each.start_s is not None]
    ends = [e.start_s + (e.duration_s or 0.0) for e in found if e.start_s is not None]
    names = ("passed", "failed", "pending", "skipped", "other")
    summary = {"tests": len(found), **{name: statuses[name] for name in names}}
    document = {
        "reportFormat": "CTRF",
        "specVersion": "0.0.0",
        "results": {
            "tool": {"name": "tprig"},
            "summary": summary
            | {"start": _ms(min(begun, default=0.0)), "stop": _ms(max(ends, default=0.0))},
            "tests": [_ctrf_test(each) for each in found],
            "environment": {"extra": environment},
        },
    }
    return json.dumps(document, indent=1) + "\n"


def _ctrf_test(each: TestResult) -> dict[str, object]:
    test: dict[str, object] = {
        "name": each.name,
        "status": _CTRF[each.result],
        "duration": _ms(each.duration_s or 0.0),
        "rawStatus": each.result,
        "filePath": each.file,
    }
    if each.result != "passed":
        test["message"] = each.detail or _WORDS[each.result]
    return test


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


# --- Buildkite Test Engine ----------------------------------------------------------------------

_TEST_ENGINE = {
    "passed": "passed",
    "failed": "failed",
    "error": "failed",
    "skipped": "skipped",
    "interrupted": "unknown",
    "not-run": "unknown",
}


def test_engine(found: Sequence[TestResult], run: str) -> str:
    """Return the JSON that Buildkite Test Engine imports.

    Args:
        found: the tests.
        run: names the run; the same test of the same run gets the same id.
    """
    return json.dumps([_test_engine_test(each, run) for each in found], indent=1) + "\n"


test_engine.__test__ = False  # type: ignore[attr-defined]


def _test_engine_test(each: TestResult, run: str) -> dict[str, object]:
    start, duration = each.start_s or 0.0, each.duration_s or 0.0
    section = {"section": "top", "start_at": start, "end_at": start + duration}
    test: dict[str, object] = {
        "id": str(uuid.uuid5(_NAMESPACE, f"{run}\n{each.test}")),
        "scope": each.file,
        "name": each.name,
        "location": each.test,
        "file_name": each.file,
        "result": _TEST_ENGINE[each.result],
        "history": section | {"duration": duration},
    }
    if each.result in ("failed", "error"):
        lines = each.detail.splitlines() or [_WORDS[each.result]]
        test["failure_reason"] = lines[-1][:300]
        test["failure_expanded"] = [{"expanded": lines, "backtrace": []}]
    return test
