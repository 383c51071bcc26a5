"""The pytest plugin: tests that say which devices they need, and get exactly those.

@pytest.mark.gpus(count=2, min_free_gib=40, topology="nvlink")
def test_server(gpu_lease):
    subprocess.run(command)  # sees the two leased GPUs, and no other

The marker says what a test needs; the fixture takes it for the length of the test. A marked test
without the fixture takes its lease by other means, such as the engine that it borrows. What this
host can never serve is an error at collection. With pytest-xdist, `--dist gpu` hands tests out so
that no worker waits for what another one holds (see `distribution`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpu_scheduler import durations, hookspecs, needs, usage
from gpu_scheduler.errors import GpuSchedulerError
from gpu_scheduler.peaks import MemoryPeak
from gpu_scheduler.placement import Kind, Request
from gpu_scheduler.scheduler import Lease, lease
from gpu_scheduler.seats import seated
from gpu_scheduler.survey import unsatisfiable
from gpu_scheduler.workers import Registrar

EXIT_UNKNOWN = 10
"""pytest's exit status when all that ran passed, and something could not be decided."""

UNSATISFIABLE = "gpu_unsatisfiable"
"""Property of a test that was skipped because this host can never serve it: the reason."""


@dataclass
class _Run:
    """What one process of a run has seen."""

    asked: bool = False
    """Whether any test needs a device."""
    undecided: list[str] = field(default_factory=list)
    passed: dict[str, list[bool]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    trouble: str | None = None


_RUN = pytest.StashKey[_Run]()
_TIMER = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Register the options, and what is needed once xdist is there."""
    group = parser.getgroup("gpu_scheduler", "leases on GPUs")
    group.addoption(
        "--tprig-lease-wait",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="for devices that others hold",
    )
    group.addoption(
        "--tprig-lease-kind",
        choices=("cuda", "cpu"),
        default="cuda",
        help="what the marker gpus counts: GPUs (default), or cores in their stead",
    )
    group.addoption(
        "--tprig-allow-unsatisfiable",
        action="store_true",
        help=f"skip tests that this host can never serve; the run then ends {EXIT_UNKNOWN}",
    )
    pluginmanager.register(Registrar(parser, pluginmanager), "gpu_scheduler.registrar")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Let suites say what their tests need."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; refuse at once what would be refused at the first lease."""
    needs.lease_wait_s(config)
    config.addinivalue_line("markers", needs.MARKER)
    config.stash[_RUN] = _Run()


@pytest.hookimpl(trylast=True)
def pytest_gpu_request(item: pytest.Item) -> Request | None:
    """What the marker says."""
    kind: Kind = item.config.getoption("--tprig-lease-kind")
    return needs.requested(item, kind)


@pytest.hookimpl(trylast=True)
def pytest_gpu_group(item: pytest.Item) -> str | None:
    """What xdist's own marker says."""
    mark = item.get_closest_marker("xdist_group")
    if mark is None:
        return None
    return str(mark.args[0] if mark.args else mark.kwargs.get("name", "default"))


# --- collection --------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse, with the reason, what can never be served; only what was selected is looked at."""
    refused: dict[Request, GpuSchedulerError | None] = {}
    kept: list[pytest.Item] = []
    for item in items:
        try:
            request = item.config.hook.pytest_gpu_request(item=item)
        except needs.MarkerError as error:
            _fail_collection(item, str(error))
            continue
        item.stash[needs.REQUEST] = request
        if request is None or _admitted(config, item, request, refused):
            kept.append(item)
    items[:] = kept
    config.stash[_RUN].asked = any(item.stash[needs.REQUEST] is not None for item in kept)


def _admitted(
    config: pytest.Config,
    item: pytest.Item,
    request: Request,
    refused: dict[Request, GpuSchedulerError | None],
) -> bool:
    """Whether a test is to stay in the run, be it to be skipped."""
    if config.option.collectonly:
        return True  # a list of tests may be wanted for another host
    anyone = replace(request, test="this test")
    if anyone not in refused:
        refused[anyone] = _refusal(anyone)
    error = refused[anyone]
    if error is None:
        return True
    reason = f"{item.nodeid} can never be served on this host\n{error}"
    if not config.getoption("--tprig-allow-unsatisfiable"):
        _fail_collection(item, reason)
        return False
    item.stash[needs.REQUEST] = None
    item.user_properties.append((UNSATISFIABLE, str(error)))
    item.add_marker(pytest.mark.skip(reason=reason), append=False)
    return True


def _refusal(request: Request) -> GpuSchedulerError | None:
    try:
        return unsatisfiable(request)
    except GpuSchedulerError as error:
        return error


def _fail_collection(item: pytest.Item, reason: str) -> None:
    report = pytest.CollectReport(nodeid=item.nodeid, outcome="failed", longrepr=reason, result=[])
    item.ihook.pytest_collectreport(report=report)


# --- one test ----------------------------------------------------------------------------------


@pytest.fixture
def gpu_lease(request: pytest.FixtureRequest) -> Iterator[Lease]:
    """The devices that the marker `gpus` asks for, one without it, held for this test.

    Meanwhile the environment and the affinity of this process are such that it, and all that it
    starts, see exactly these devices (see `seats.seated` on processes that use CUDA themselves).
    """
    item = request.node
    # A test that asks for the fixture by its name while it runs has told nobody before.
    kind: Kind = item.config.getoption("--tprig-lease-kind")
    wanted = item.stash[needs.REQUEST] or Request(count=1, kind=kind, test=item.nodeid)
    with _timer_stopped(item):
        held = lease(
            wanted.count,
            kind=wanted.kind,
            test=item.nodeid,
            wait_s=needs.lease_wait_s(item.config),
            min_free_bytes=wanted.min_free_bytes,
            topology=wanted.topology,
        )
    item.user_properties.extend(usage.granted(held.devices, held.wait_s))
    peak = MemoryPeak(held.devices)
    try:
        with held, peak, seated(held):
            yield held
    finally:
        item.user_properties.append(usage.used(peak))


@contextmanager
def _timer_stopped(item: pytest.Item) -> Iterator[None]:
    """Keep pytest-timeout's clock from running while others hold the devices."""
    settings = item.stash.get(_TIMER, None)
    if settings is None:
        yield
        return
    item.config.hook.pytest_timeout_cancel_timer(item=item)
    try:
        yield
    finally:
        item.config.hook.pytest_timeout_set_timer(item=item, settings=settings)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(
    item: pytest.Item,
    settings: Any,  # noqa: ANN401 (pytest-timeout's own)
) -> Generator[None, object, object]:
    """Remember the settings of a timer that runs."""
    item.stash[_TIMER] = settings
    return (yield)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> Generator[None, object, object]:
    """Forget them when it runs no more."""
    item.stash.setdefault(_TIMER, None)
    del item.stash[_TIMER]
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the errors of leases by their words: a traceback of ours would only hide them."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, GpuSchedulerError):
        report.longrepr = str(call.excinfo.value)
    return report


# --- the end -----------------------------------------------------------------------------------


class _Recorder:
    """Notes, in the process that reports, how long tests took and which were skipped by us."""

    def __init__(self, config: pytest.Config) -> None:
        self._run = config.stash[_RUN]
        self._waited: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one phase of a test."""
        properties = dict(report.user_properties)
        if UNSATISFIABLE in properties and report.when == "setup":
            self._run.undecided.append(report.nodeid)
        self._run.passed.setdefault(report.nodeid, []).append(report.passed)
        # What was waited for is part of the phase whose report is the first to tell it.
        told = report.nodeid in self._waited
        waited_s = properties.get(usage.WAIT, 0.0) if not told else 0.0
        assert isinstance(waited_s, float)
        if usage.WAIT in properties:
            self._waited.add(report.nodeid)
        took_s = max(0.0, report.duration - waited_s)
        self._run.seconds[report.nodeid] = self._run.seconds.get(report.nodeid, 0.0) + took_s


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin to note, where the reports of all workers come together."""
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Recorder(session.config), "gpu_scheduler.recorder")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    """Keep the durations, and never call a run green in which something could not be run."""
    config = session.config
    run = config.stash[_RUN]
    if hasattr(config, "workerinput"):
        return
    if run.undecided and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = EXIT_UNKNOWN
    if run.asked or config.getoption("dist", None) == "gpu":
        # A test that failed may have ended early.
        whole = {test: run.seconds[test] for test, passed in run.passed.items() if all(passed)}
        try:
            durations.record(config.rootpath / durations.FILE, whole)
        except durations.DurationsError as error:
            run.trouble = str(error)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what leaves the run undecided, and what could not be kept."""
    run = config.stash[_RUN]
    if run.undecided:
        terminalreporter.section("gpu_scheduler", yellow=True)
        terminalreporter.write_line(
            f"{len(run.undecided)} test(s) can never be served on this host; the run is unknown"
        )
    if run.trouble is not None:
        terminalreporter.write_line(f"gpu_scheduler: durations not kept: {run.trouble}")
