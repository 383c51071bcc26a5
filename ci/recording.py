"""Plugin of a step's pytest (`-p ci.recording`): writes each event into the attempt's stream."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from ci import events
from ci.events import Outcome

OPTION = "--ci-record"
_PR_SET_PDEATHSIG = 1


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register where to write."""
    parser.addoption(OPTION, type=Path)


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that reports: with xdist that is the controller, not its workers."""
    path = config.getoption(OPTION)
    if path is not None and not hasattr(config, "workerinput"):
        _end_with_runner()
        recorder = Recorder(path)
        config.pluginmanager.register(recorder, "ci-recorder")
        if config.pluginmanager.hasplugin("dsession"):
            config.pluginmanager.register(WorkerRecorder(recorder), "ci-worker-recorder")


def _end_with_runner() -> None:
    """Should the step's runner be killed, nothing would end this pytest or keep its results."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Recorder:
    """What pytest's own hooks tell."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, tuple[Outcome, str, float]] = {}
        self._collected: set[str] = set()

    def collected(self, tests: Sequence[str]) -> None:
        """What was collected; workers collect the same, which is written once."""
        if new := [test for test in tests if test not in self._collected]:
            self._collected.update(new)
            self._write(events.CollectedTests(tests=new))

    def lost(self, worker: str, detail: str) -> None:
        """A worker is gone."""
        self._write(events.WorkerLost(worker=worker, detail=_clean(detail)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be collected must not go missing in silence."""
        if report.failed:
            detail = _clean(report.longreprtext)
            self._write(events.CollectionFailed(where=report.nodeid or ".", detail=detail))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """What is left after deselection."""
        self.collected([item.nodeid for item in session.items])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._write(events.Started(test=nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a phase's outcome: the first failure counts, else a skip."""
        outcome, detail, seconds = self._outcomes.get(report.nodeid, ("passed", "", 0.0))
        if outcome in ("passed", "skipped") and not report.passed:
            outcome, detail = _outcome(report), _detail(report)
        self._outcomes[report.nodeid] = (outcome, detail, seconds + report.duration)
        if report.when not in ("setup", "call", "teardown"):
            # xdist made this report itself, of a test whose worker crashed: no other follows.
            self._finish(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended."""
        self._finish(nodeid)

    def _finish(self, test: str) -> None:
        outcome, detail, seconds = self._outcomes.pop(test, ("interrupted", "no report", 0.0))
        self._write(events.Finished(test=test, outcome=outcome, seconds=seconds, detail=detail))

    def _write(self, event: events.AnyEvent) -> None:
        events.append(self._path, event)


class WorkerRecorder:
    """What xdist's hooks tell."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """A worker has collected."""
        self._recorder.collected(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        """A worker has ended, with an error if it crashed."""
        if error is not None:
            gateway = getattr(node, "gateway", None)
            self._recorder.lost(str(getattr(gateway, "id", "?")), str(error))


def _outcome(report: pytest.TestReport) -> Outcome:
    if report.skipped:
        return "skipped"
    if report.when not in ("setup", "call", "teardown"):
        return "crashed"
    return "failed" if report.when == "call" else "error"


def _detail(report: pytest.TestReport) -> str:
    # Of a skip: file, line, reason.
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return _clean(text)


def _clean(text: str) -> str:
    # What a terminal or a page would obey is made harmless by who shows it.
    return text.encode(errors="backslashreplace").decode()[-events.DETAIL_CHARS :]
