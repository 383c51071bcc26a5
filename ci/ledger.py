"""Planned = collected = started = finished: merged over shards and attempts. Pure.

No re-run hides a failure: a test that failed in any attempt has failed. An attempt that was lost
with its agent decides nothing; the next one may.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ci import events
from ci.codes import PYTEST_UNKNOWN, Standing
from ci.plan import BuildPlan, PlannedStep

FAILURES = ("failed", "error", "crashed")


@dataclass
class AttemptLedger:
    """One attempt at a step, as its stream tells it.

    Attributes:
        ended: None when its runner was lost.
    """

    step: str
    attempt: int
    job: str
    collected: set[str] = field(default_factory=set)
    started: dict[str, float] = field(default_factory=dict)
    finished: dict[str, events.Finished] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    ended: events.Ended | None = None

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.step}, attempt {self.attempt} (job {self.job})"


def attempt_of(stream: Sequence[events.AnyEvent]) -> AttemptLedger:
    """Read an attempt's stream.

    Raises:
        ValueError: it does not begin with its beginning.
    """
    if not stream or not isinstance(stream[0], events.Begun):
        raise ValueError("expected a stream that begins with the attempt's step, found none")
    begun = stream[0]
    ledger = AttemptLedger(begun.step, begun.attempt, begun.job)
    for event in stream[1:]:
        _take(ledger, event)
    return ledger


def _take(ledger: AttemptLedger, event: events.AnyEvent) -> None:
    match event:
        case events.CollectedTests(tests=tests):
            ledger.collected.update(tests)
        case events.Started(test=test, at_s=at_s):
            ledger.started[test] = at_s
        case events.Finished(test=test):
            before = ledger.finished.get(test)
            if before is None or before.outcome not in FAILURES:
                ledger.finished[test] = event
        case events.CollectionFailed(where=where, detail=detail):
            last = detail.strip().splitlines()[-1:] or ["no reason"]
            ledger.troubles.append(f"collection of {where} failed: {last[0]}")
        case events.WorkerLost(worker=worker, detail=detail):
            ledger.troubles.append(f"worker {worker} was lost: {detail[:200]}")
        case events.Ended():
            ledger.ended = event
        case events.Begun():
            ledger.troubles.append("two runners wrote into this attempt's stream")


@dataclass(frozen=True)
class TestLine:
    """One planned test.

    Attributes:
        step: the key of its step.
        outcomes: of each attempt, in order: an outcome, `not collected`, `not started` or
            `did not finish`.
        standing: what it comes to.
        seconds: of the attempt that decided; None when none did.
        detail: the first failure, or why it was skipped.
        at_s: when the deciding attempt began it.
    """

    __test__ = False

    test: str
    step: str
    outcomes: tuple[str, ...]
    standing: Standing
    seconds: float | None
    detail: str
    at_s: float | None


@dataclass(frozen=True)
class Merged:
    """The ledger of a build."""

    lines: tuple[TestLine, ...]
    problems: tuple[str, ...]
    """What no test's line tells: steps that never ran, collection errors, crashes, time-outs."""
    standing: Standing
    counts: Mapping[str, int]
    """planned, collected, started, finished, passed, failed, skipped, attempts."""

    @property
    def not_run(self) -> list[TestLine]:
        """Planned tests that no attempt finished."""
        return [line for line in self.lines if not _ran(line)]


def _ran(line: TestLine) -> bool:
    return any(not _missing(outcome) for outcome in line.outcomes)


def _missing(outcome: str) -> bool:
    return outcome in ("not collected", "not started", "did not finish", "interrupted")


def merge(
    plan: BuildPlan, attempts: Sequence[AttemptLedger], may_skip: frozenset[str] = frozenset()
) -> Merged:
    """Hold what ran against what was planned.

    Args:
        plan: of the build.
        attempts: all of all steps, in any order.
        may_skip: tests that may have skipped themselves, besides those that the plan names: of
            bundles whose plan says that all their claims are not applicable.
    """
    lines: list[TestLine] = []
    problems = [*_strangers(plan, attempts)]
    standings: list[Standing] = ["unknown"] if problems else []
    for step in plan.steps:
        mine = sorted((a for a in attempts if a.step == step.key), key=lambda a: (a.attempt, a.job))
        lines += [_line(step, test, mine, may_skip) for test in step.tests]
        for standing, problem in _problems(step, mine):
            standings.append(standing)
            problems.append(problem)
    standings += [line.standing for line in lines]
    return Merged(tuple(lines), tuple(problems), _worst(standings), _counts(lines, attempts))


def _worst(standings: Sequence[Standing]) -> Standing:
    if not standings or ("unknown" in standings and "fail" not in standings):
        return "unknown"
    return "fail" if "fail" in standings else "pass"


def _strangers(plan: BuildPlan, attempts: Sequence[AttemptLedger]) -> Iterator[str]:
    keys = {step.key for step in plan.steps}
    for attempt in attempts:
        if attempt.step not in keys:
            yield f"{attempt.name}: the plan has no such step"
    if not any(step.tests for step in plan.steps):
        yield "the plan has no tests"


def _line(
    step: PlannedStep, test: str, attempts: Sequence[AttemptLedger], may_skip: frozenset[str]
) -> TestLine:
    outcomes = tuple(_outcome(attempt, test) for attempt in attempts)
    deciding = _deciding(attempts, test)
    finished = None if deciding is None else deciding.finished[test]
    return TestLine(
        test=test,
        step=step.key,
        outcomes=outcomes,
        standing=_standing(outcomes, skips=test in may_skip or test in step.may_skip),
        seconds=None if finished is None else finished.seconds,
        detail="" if finished is None else finished.detail,
        at_s=None if deciding is None else deciding.started.get(test),
    )


def _outcome(attempt: AttemptLedger, test: str) -> str:
    if test in attempt.finished:
        return attempt.finished[test].outcome
    if test in attempt.started:
        ended = attempt.ended
        # pytest died while its runner lived on: the test took it down.
        crashed = ended is not None and ended.status < 0 and not _stopped(ended)
        return "crashed" if crashed else "did not finish"
    return "not started" if test in attempt.collected else "not collected"


def _stopped(ended: events.Ended) -> bool:
    return ended.timed_out or ended.cancelled


def _deciding(attempts: Sequence[AttemptLedger], test: str) -> AttemptLedger | None:
    """The first attempt in which it failed, else the last in which it finished."""
    finished = [attempt for attempt in attempts if test in attempt.finished]
    failed = [a for a in finished if a.finished[test].outcome in FAILURES]
    return next(iter(failed), finished[-1] if finished else None)


def _standing(outcomes: Sequence[str], *, skips: bool) -> Standing:
    if any(outcome in FAILURES for outcome in outcomes):
        return "fail"
    if "passed" in outcomes or ("skipped" in outcomes and skips):
        return "pass"
    return "unknown"


def _problems(
    step: PlannedStep, attempts: Sequence[AttemptLedger]
) -> Iterator[tuple[Standing, str]]:
    if not attempts:
        yield "unknown", f"{step.key}: no attempt left a trace"
    whole = any(attempt.ended is not None for attempt in attempts)
    for attempt in attempts:
        extra = sorted((attempt.collected | attempt.finished.keys()) - set(step.tests))
        if extra:
            yield "unknown", f"{attempt.name}: ran what was not planned: {', '.join(extra[:3])}"
        for trouble in attempt.troubles:
            # A worker of xdist is lost in a crash, and a crash is a failure.
            yield ("fail" if "worker" in trouble else "unknown"), f"{attempt.name}: {trouble}"
        if attempt.ended is None:
            again = "a later attempt ended" if whole else "and no other attempt ended"
            lost: Standing = "pass" if whole else "unknown"
            yield lost, f"{attempt.name}: its runner was lost; {again}"
        else:
            yield from _ending(attempt, attempt.ended)


def _ending(attempt: AttemptLedger, ended: events.Ended) -> Iterator[tuple[Standing, str]]:
    if ended.timed_out:
        yield "unknown", f"{attempt.name}: the watchdog ended it at its deadline"
    elif ended.cancelled:
        yield "unknown", f"{attempt.name}: it was cancelled"
    elif ended.status < 0:
        yield "fail", f"{attempt.name}: pytest was ended by signal {-ended.status}"
    elif ended.status == PYTEST_UNKNOWN:
        yield "unknown", f"{attempt.name}: claims were left undecided (exit 10)"
    elif ended.status == 1:
        yield "fail", f"{attempt.name}: pytest failed (exit 1)"
    elif ended.status:
        yield "unknown", f"{attempt.name}: pytest ended {ended.status}"


def _counts(lines: Sequence[TestLine], attempts: Sequence[AttemptLedger]) -> dict[str, int]:
    def having(what: str) -> int:
        return sum(any(outcome == what for outcome in line.outcomes) for line in lines)

    reached = {"not collected": 0, "not started": 1, "did not finish": 2}
    far = [max((reached.get(o, 3) for o in line.outcomes), default=0) for line in lines]
    return {
        "planned": len(lines),
        "collected": sum(each >= 1 for each in far),
        "started": sum(each >= 2 for each in far),
        "finished": sum(each >= 3 for each in far),
        "passed": having("passed"),
        "failed": sum(any(o in FAILURES for o in line.outcomes) for line in lines),
        "skipped": having("skipped"),
        "attempts": len(attempts),
    }
