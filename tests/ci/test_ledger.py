"""Planned = collected = started = finished, over shards and attempts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci import events, ledger, plan
from ci.events import AnyEvent, Outcome
from tests.ci.test_pipeline import collected, suite

PLAN = plan.make([suite(gpus=1)], {"a": collected(1, 1)}, {})
KEY = PLAN.steps[0].key
ONE, TWO = PLAN.steps[0].tests


def attempt(
    number: int = 0, *more: AnyEvent, tests: tuple[str, ...] = (ONE, TWO)
) -> list[AnyEvent]:
    begun = events.Begun(step=KEY, attempt=number, job=f"job{number}")
    return [begun, events.CollectedTests(tests=list(tests)), *more]


def ran(test: str, outcome: Outcome = "passed", detail: str = "") -> tuple[AnyEvent, AnyEvent]:
    finished = events.Finished(test=test, outcome=outcome, seconds=1.0, detail=detail)
    return events.Started(test=test), finished


def merged(*streams: list[AnyEvent], may_skip: frozenset[str] = frozenset()) -> ledger.Merged:
    return ledger.merge(PLAN, [ledger.attempt_of(stream) for stream in streams], may_skip)


SOUND = attempt(0, *ran(ONE), *ran(TWO), events.Ended(status=0))


def test_all_that_was_planned_and_passed_is_a_pass() -> None:
    found = merged(SOUND)
    assert (found.standing, found.problems, found.not_run) == ("pass", (), [])
    assert found.counts == {
        "planned": 2, "collected": 2, "started": 2, "finished": 2, "passed": 2, "failed": 0,
        "skipped": 0, "attempts": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("stream", "standing", "outcomes", "problem"),
    [
        (attempt(0, *ran(ONE), events.Ended(status=0)), "unknown", ("passed", "not started"), None),
        (attempt(0, *ran(ONE), events.Ended(status=0), tests=(ONE,)), "unknown",
         ("passed", "not collected"), None),
        (attempt(0, *ran(ONE), *ran(TWO, "failed"), events.Ended(status=1)), "fail",
         ("passed", "failed"), "pytest failed"),
        (attempt(0, *ran(ONE), *ran(TWO, "skipped"), events.Ended(status=0)), "unknown",
         ("passed", "skipped"), None),
        (attempt(0, *ran(ONE), events.Started(test=TWO), events.Ended(status=-11)), "fail",
         ("passed", "crashed"), "ended by signal 11"),
        (attempt(0, *ran(ONE), events.Started(test=TWO), events.Ended(status=2, timed_out=True)),
         "unknown", ("passed", "did not finish"), "watchdog"),
        (attempt(0, *ran(ONE), events.Started(test=TWO), events.Ended(status=2, cancelled=True)),
         "unknown", ("passed", "did not finish"), "cancelled"),
        (attempt(0, *ran(ONE), events.Started(test=TWO)), "unknown",
         ("passed", "did not finish"), "its runner was lost"),
        (attempt(0, *ran(ONE), *ran(TWO), events.Ended(status=10)), "unknown",
         ("passed", "passed"), "undecided"),
        (attempt(0, *ran(ONE), *ran(TWO), events.Ended(status=3)), "unknown",
         ("passed", "passed"), "pytest ended 3"),
        (attempt(0, *ran(ONE), *ran(TWO), events.Ended(status=1)), "fail",
         ("passed", "passed"), "pytest failed"),
        (attempt(0, *ran(ONE), *ran(TWO, "crashed"), events.WorkerLost(worker="gw0", detail="x"),
                 events.Ended(status=1)), "fail", ("passed", "crashed"), "worker gw0 was lost"),
        (attempt(0, events.CollectionFailed(where="t.py", detail="E\nImportError: x"),
                 *ran(ONE), *ran(TWO), events.Ended(status=0)), "unknown",
         ("passed", "passed"), "collection of t.py failed: ImportError: x"),
        (attempt(0, *ran(ONE), *ran(TWO), *ran("other.py::test"), events.Ended(status=0)),
         "unknown", ("passed", "passed"), "not planned: other.py::test"),
    ],
)  # fmt: skip
def test_whatever_lacks_is_never_green(
    stream: list[AnyEvent], standing: str, outcomes: tuple[str, str], problem: str | None
) -> None:
    found = merged(stream)
    assert found.standing == standing
    assert tuple(line.outcomes[0] for line in found.lines) == outcomes
    assert problem is None or any(problem in each for each in found.problems)


def test_a_step_that_left_nothing_is_unknown() -> None:
    found = merged()
    assert found.standing == "unknown"
    assert found.problems == (f"{KEY}: no attempt left a trace",)
    assert [line.test for line in found.not_run] == [ONE, TWO]


def test_no_rerun_hides_a_failure() -> None:
    failed = attempt(0, *ran(ONE), *ran(TWO, "failed", "first"), events.Ended(status=1))
    passed = attempt(1, *ran(ONE), *ran(TWO), events.Ended(status=0))
    found = merged(passed, failed)
    assert found.standing == "fail"
    assert found.lines[1].outcomes == ("failed", "passed")
    assert found.lines[1].detail == "first"


def test_an_attempt_that_was_lost_with_its_agent_may_be_made_again() -> None:
    lost = attempt(0, *ran(ONE), events.Started(test=TWO))
    passed = attempt(1, *ran(ONE), *ran(TWO), events.Ended(status=0))
    found = merged(lost, passed)
    assert found.standing == "pass"
    assert found.lines[1].outcomes == ("did not finish", "passed")
    assert "a later attempt ended" in found.problems[0]
    failed_before = attempt(0, *ran(ONE, "failed"), events.Started(test=TWO))
    assert merged(failed_before, passed).standing == "fail"


def test_a_skip_passes_only_where_it_was_foreseen() -> None:
    stream = attempt(0, *ran(ONE), *ran(TWO, "skipped"), events.Ended(status=0))
    assert merged(stream, may_skip=frozenset({TWO})).standing == "pass"


def test_an_attempt_at_a_step_that_the_plan_has_not_is_told() -> None:
    begun = events.Begun(step="other", attempt=0, job="j")
    found = ledger.merge(PLAN, [ledger.attempt_of(SOUND), ledger.attempt_of([begun])])
    assert found.standing == "unknown"
    assert "the plan has no such step" in found.problems[0]


@given(st.integers(0, len(SOUND) - 1))
def test_a_stream_cut_short_anywhere_is_never_green(length: int) -> None:
    streams = [SOUND[:length]] if length else []
    assert merged(*streams).standing == "unknown"


def test_a_plan_without_tests_is_never_green() -> None:
    empty = plan.BuildPlan(version=1, steps=[], left_out={})
    assert ledger.merge(empty, []).standing == "unknown"
