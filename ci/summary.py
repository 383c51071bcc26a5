"""The last step of a build: merges what all attempts left, and says what it comes to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ci import events, ledger
from ci.codes import EXIT_CODES, Standing
from ci.ledger import AttemptLedger, Merged, TestLine
from ci.plan import BuildPlan
from ci.publish import AnnotationStyle, Publisher
from tprig.bundle import Bundle, BundleError, load
from tprig.judged import Judged, judge_again
from tprig.report.markdown import markdown
from tprig.report.results import ResultName, TestResult, ctrf, junit, test_engine
from tprig.report.text import code

SHOWN = 40
_STYLES: Mapping[Standing, AnnotationStyle] = {
    "pass": "success",
    "fail": "error",
    "unknown": "warning",
}


@dataclass(frozen=True)
class Evidence:
    """The bundle of one attempt, judged again here."""

    attempt: str
    step: str
    bundle: Bundle
    judged: Judged

    @property
    def standing(self) -> Standing:
        """A bundle that was damaged, or is not whole, is never `pass`."""
        codes: dict[int, Standing] = {0: "pass", 1: "fail", 3: "fail"}
        return codes.get(self.judged.exit_code, "unknown")


@dataclass(frozen=True)
class Summary:
    """All that a build says."""

    merged: Merged
    evidence: tuple[Evidence, ...]
    problems: tuple[str, ...]
    """Of streams and bundles that cannot be used."""

    @property
    def standing(self) -> Standing:
        """The worst of the ledger and of every attempt's evidence."""
        all_ = [self.merged.standing, *(each.standing for each in self.evidence)]
        all_ += ["unknown"] if self.problems else []
        return next((name for name in ("fail", "unknown") if name in all_), "pass")


def gather(plan: BuildPlan, output: Path) -> Summary:
    """Read everything below `output` and hold it against the plan."""
    problems: list[str] = []
    attempts: list[AttemptLedger] = []
    found: list[Evidence] = []
    for path in sorted(output.glob(f"*/*/{events.EVENTS_FILE}")):
        try:
            attempt = ledger.attempt_of(events.read(path))
        except (OSError, ValueError) as error:
            problems.append(f"{path.relative_to(output)}: {error}")
            continue
        attempts.append(attempt)
        found += _evidence(attempt, path.parent / "bundle", problems)
    engines = {step.key for step in plan.steps if step.engines}
    bare = sorted(engines - {each.step for each in found})
    problems += [f"{key}: no attempt left a bundle that can be read" for key in bare]
    may_skip = frozenset(test for each in found for test in _not_applicable(each.bundle))
    return Summary(ledger.merge(plan, attempts, may_skip), tuple(found), tuple(problems))


def _evidence(attempt: AttemptLedger, folder: Path, problems: list[str]) -> Iterator[Evidence]:
    if not folder.is_dir():
        return
    try:
        bundle = load(folder)
    except BundleError as error:
        problems.append(f"{attempt.name}: {error}")
        return
    yield Evidence(attempt.name, attempt.step, bundle, judge_again(bundle))


def _not_applicable(bundle: Bundle) -> Iterator[str]:
    """Tests that skip themselves because all of their claims do not apply, by the plan."""
    if bundle.plan is None or bundle.damaged:
        return
    for test in bundle.plan.tests:
        mine = [claim for claim in bundle.plan.claims if claim.test == test]
        if mine and all(claim.requirement == "not-applicable" for claim in mine):
            yield test


def publish(summary: Summary, folder: Path, publisher: Publisher) -> int:
    """Write every form of the summary, show it, and return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    tests = [_result(line) for line in summary.merged.lines]
    build = publisher.build
    page = render(summary)
    for name, text in {
        "summary.md": page,
        "junit.xml": junit(tests, "tprig"),
        "ctrf.json": ctrf(tests, {"build": build.build, "commit": build.commit or "unknown"}),
        "test-engine.json": test_engine(tests, build.build),
        "ledger.json": _ledger_json(summary),
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    publisher.annotate(page, _STYLES[summary.standing])
    return EXIT_CODES[summary.standing]


def _ledger_json(summary: Summary) -> str:
    document = {
        "standing": summary.standing,
        "counts": summary.merged.counts,
        "problems": [*summary.problems, *summary.merged.problems],
        "tests": summary.merged.lines,
        "not_run": [line.test for line in summary.merged.not_run],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"


def _result(line: TestLine) -> TestResult:
    return TestResult(line.test, _result_name(line), line.at_s, line.seconds, line.detail)


def _result_name(line: TestLine) -> ResultName:
    names: dict[str, ResultName] = {
        "failed": "failed",
        "error": "error",
        "crashed": "error",
        "passed": "passed",
        "skipped": "skipped",
        "did not finish": "interrupted",
    }
    shown = {names.get(outcome, "not-run") for outcome in line.outcomes}
    order: tuple[ResultName, ...] = ("failed", "error", "passed", "skipped", "interrupted")
    return next((name for name in order if name in shown), "not-run")


# --- the page -----------------------------------------------------------------------------------


def render(summary: Summary) -> str:
    """Return the summary as Markdown; words from elsewhere stand in code spans."""
    merged = summary.merged
    counts = ", ".join(f"{count} {name}" for name, count in merged.counts.items())
    blocks = [
        f"## tprig build: **{summary.standing}**",
        counts,
        _list("Problems", [code(each) for each in (*summary.problems, *merged.problems)]),
        _list("Failed", _lines(merged, "fail")),
        _list("Planned and never finished", [_told(line) for line in merged.not_run]),
        _list("Open", [t for line in _open(merged) if (t := _told(line))]),
        *(_evidence_block(each) for each in summary.evidence),
        "Judge it again: download the artifacts of all jobs, and run in a checkout of tprig "
        f"`python -m ci summary --plan .tprig/ci-plan.json`{os.linesep}",
    ]
    return "\n\n".join(block for block in blocks if block)


def _lines(merged: Merged, standing: Standing) -> list[str]:
    return [_told(line) for line in merged.lines if line.standing == standing]


def _open(merged: Merged) -> list[TestLine]:
    not_run = set(merged.not_run)
    return [each for each in merged.lines if each.standing == "unknown" and each not in not_run]


def _told(line: TestLine) -> str:
    attempts = ", then ".join(line.outcomes) or "no attempt"
    last = line.detail.strip().splitlines()[-1:]
    detail = f": {code(last[0])}" if last else ""
    return f"{code(line.test)} in {code(line.step)}: {attempts}{detail}"


def _list(title: str, items: Sequence[str]) -> str:
    if not items:
        return ""
    more = [f"- and {len(items) - SHOWN} more"] if len(items) > SHOWN else []
    return "\n".join([f"### {title}", "", *(f"- {item}" for item in items[:SHOWN]), *more])


def _evidence_block(each: Evidence) -> str:
    page = markdown(each.bundle, each.judged.verdicts)
    return f"<details><summary>{code(each.attempt)}</summary>\n\n{page}\n</details>"
