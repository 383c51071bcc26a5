"""The plugin in a pytest of its own, with none of our suites, on fake GPUs and on core slots."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_scheduler import durations
from gpu_scheduler.plugin import EXIT_UNKNOWN
from gpu_scheduler.scheduler import lease
from tests.fakes.nvml import GIB, FakeNvml
from tests.gpu_scheduler.children import ROOT

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]

SUITE = """
import os, subprocess, sys
import pytest

def seen_by_a_child():
    show = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
    return subprocess.check_output([sys.executable, "-c", show], text=True).strip()
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a suite with this plugin and those named; `apart=True` in a process of its own."""
    # Other plugins would be imported anew in each run.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    # In this process the plugin was imported before, where it is installed.
    twice = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    pytester.makeini(
        f"[pytest]\naddopts = --strict-markers\nfilterwarnings =\n    error\n    {twice}\n"
    )

    def run(suite: str, *words: str, apart: bool = False) -> pytest.RunResult:
        pytester.makepyfile(test_suite=SUITE + suite)
        start = pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess
        return start("-p", "gpu_scheduler.plugin", *words)

    return run


@pytest.fixture
def spread(run: Run, host: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a suite over two workers of xdist, which see the fake GPUs through the real library."""
    for name, value in host.environment.items():
        monkeypatch.setenv(name, value)

    def spread(suite: str, *words: str) -> pytest.RunResult:
        options = ("-p", "xdist", "-n2", "--dist=gpu", "--tprig-lease-wait=60")
        return run(suite, *options, *words, apart=True)

    return spread


def properties(path: Path) -> dict[str, dict[str, str]]:
    """The properties of each test in a JUnit file, by its name."""
    cases = ET.parse(path).getroot().iter("testcase")  # noqa: S314 (written by our own run)
    return {
        case.attrib["name"]: {each.attrib["name"]: each.attrib["value"] for each in props}
        for case in cases
        for props in [list(case.iter("property"))]
    }


# --- one test and its devices ------------------------------------------------------------------


def test_a_test_and_its_children_see_exactly_what_is_leased(run: Run, host: FakeNvml) -> None:
    outer = os.environ.get("CUDA_VISIBLE_DEVICES")
    result = run(
        """
def test_default(gpu_lease):
    assert seen_by_a_child() == "0"

@pytest.mark.gpus(count=2)
def test_two(gpu_lease):
    assert [device.index for device in gpu_lease.devices] == [0, 1]
    assert seen_by_a_child() == os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"

def test_none():
    assert seen_by_a_child() == "None"
"""
    )
    result.assert_outcomes(passed=3)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == outer


def test_a_test_may_ask_for_its_lease_while_it_runs(run: Run) -> None:
    result = run(
        """
def test_it(request):
    held = request.getfixturevalue("gpu_lease")
    assert seen_by_a_child() == str(held.devices[0].index)
"""
    )
    result.assert_outcomes(passed=1)


def test_core_slots_stand_for_gpus_when_asked(run: Run) -> None:
    cores = os.sched_getaffinity(0)
    result = run(
        """
def test_one(gpu_lease):
    assert os.sched_getaffinity(0) == {gpu_lease.devices[0].core}
""",
        "--tprig-lease-kind=cpu",
    )
    result.assert_outcomes(passed=1)
    assert os.sched_getaffinity(0) == cores


def test_a_lease_ends_with_its_test_however_that_ends(run: Run) -> None:
    result = run(
        """
@pytest.mark.gpus(2)
@pytest.mark.parametrize("how", ["passes", "fails"])
def test_it(gpu_lease, how):
    assert how == "passes"
""",
        "--tprig-lease-wait=0",
    )
    result.assert_outcomes(passed=1, failed=1)
    lease(2, kind="cuda", test="after", wait_s=0).release()


@pytest.mark.parametrize("wait", ["-1", "nan"])
def test_a_wait_that_is_none_is_refused(run: Run, wait: str) -> None:
    result = run("def test_it(): pass\n", f"--tprig-lease-wait={wait}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --tprig-lease-wait: expected seconds, *found {wait}"])


def test_waiting_in_vain_is_told_in_words(run: Run) -> None:
    with lease(1, kind="cuda", test="other.py::test_other", wait_s=0):
        result = run("@pytest.mark.gpus(2)\ndef test_it(gpu_lease): pass\n", "--tprig-lease-wait=0")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*2 cuda device(s) for *::test_it within 0 s", "*test_other*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*scheduler.py*")


def test_junit_carries_wait_devices_and_peak(
    run: Run, host: FakeNvml, pytester: pytest.Pytester
) -> None:
    host.gpus[0].used_bytes = 3 * GIB
    result = run(
        "@pytest.mark.gpus(2)\ndef test_it(gpu_lease): pass\ndef test_none(): pass\n",
        "--junitxml=junit.xml",
    )
    assert result.ret == 0
    found = properties(pytester.path / "junit.xml")
    waited_s = float(found["test_it"].pop("gpu_wait_s"))
    assert 0 <= waited_s < 60
    assert found == {
        "test_it": {
            "gpu_uuids": ",".join(gpu.uuid for gpu in host.gpus),
            "gpu_peak_memory_bytes": f"{3 * GIB},0",
        },
        "test_none": {},
    }


def test_the_memory_of_cores_is_unknown_not_nothing(run: Run, pytester: pytest.Pytester) -> None:
    run("def test_it(gpu_lease): pass\n", "--tprig-lease-kind=cpu", "--junitxml=junit.xml")
    (found,) = properties(pytester.path / "junit.xml").values()
    assert found["gpu_peak_memory_bytes"] == "unknown"


# --- collection --------------------------------------------------------------------------------

TOO_MUCH = """
@pytest.mark.gpus(3)
def test_wide(gpu_lease): pass

@pytest.mark.gpus(min_free_gib=500)
def test_large(gpu_lease): pass

def test_other(): pass
"""


def test_what_can_never_be_served_fails_at_collection(run: Run) -> None:
    result = run(TOO_MUCH)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        [
            "*::test_wide can never be served on this host",
            "expected: 3 cuda device(s) for this test",
            "found: * 2 cuda device(s) usable by this process, 2 of them large enough*",
            "*::test_large can never be served on this host",
            "expected: 1 cuda device(s) with 500.0 GiB free each for this test",
        ]
    )
    result.assert_outcomes(errors=2)


def test_or_is_skipped_when_that_is_allowed_and_the_run_is_unknown(
    run: Run, pytester: pytest.Pytester
) -> None:
    result = run(TOO_MUCH, "--tprig-allow-unsatisfiable", "--junitxml=junit.xml", "-rs")
    assert result.ret == EXIT_UNKNOWN
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "*2 test(s) can never be served on this host; the run is unknown",
            "SKIPPED *::test_wide can never be served on this host*",
        ]
    )
    found = properties(pytester.path / "junit.xml")
    assert "3 cuda device(s)" in found["test_wide"]["gpu_unsatisfiable"]
    assert found["test_other"] == {}


def test_a_failure_outweighs_what_is_unknown(run: Run) -> None:
    result = run(TOO_MUCH + "def test_bad(): assert False\n", "--tprig-allow-unsatisfiable")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_only_what_was_selected_is_refused(run: Run) -> None:
    result = run(TOO_MUCH, "-k", "other")
    result.assert_outcomes(passed=1, deselected=2)
    assert result.ret == 0


def test_a_list_of_tests_may_be_for_another_host(run: Run) -> None:
    result = run(TOO_MUCH, "--collect-only", "-q")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*::test_wide", "*::test_large"])


def test_no_gpu_at_all_is_said_with_its_reason(run: Run, host: FakeNvml) -> None:
    host.gpus = []
    result = run("def test_it(gpu_lease): pass\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*the NVIDIA driver is loaded but shows no GPU*"])


def test_a_marker_that_cannot_be_meant_fails_at_collection(run: Run) -> None:
    result = run("@pytest.mark.gpus(gib=3)\ndef test_it(): pass\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*unexpected keyword argument 'gib'", "remedy: *::test_it"])


def test_suites_may_say_what_their_tests_need(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
from gpu_scheduler import Request

def pytest_gpu_request(item):
    if "wide" in item.name:
        return Request(count=9, kind="cuda", test=item.nodeid)
"""
    )
    result = run("def test_wide(): pass\ndef test_other(gpu_lease): pass\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["expected: 9 cuda device(s) for this test"])
    result.assert_outcomes(errors=1)


# --- durations ---------------------------------------------------------------------------------


def recorded(pytester: pytest.Pytester) -> dict[str, float]:
    return durations.load(pytester.path / durations.FILE)


def test_durations_of_what_passed_are_kept(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        """
def test_passes(gpu_lease): pass
def test_other(): pass
def test_fails(gpu_lease): assert False
"""
    )
    result.assert_outcomes(passed=2, failed=1)
    names = {"test_suite.py::test_passes", "test_suite.py::test_other"}
    assert set(recorded(pytester)) == names


def test_a_project_without_such_tests_gets_no_file(run: Run, pytester: pytest.Pytester) -> None:
    assert run("def test_it(): pass\n").ret == 0
    assert not (pytester.path / ".tprig").exists()


def test_a_file_that_holds_something_else_is_told_and_fails_no_test(
    run: Run, pytester: pytest.Pytester
) -> None:
    path = pytester.path / durations.FILE
    path.parent.mkdir()
    path.write_text("mine")
    result = run("def test_it(gpu_lease): pass\n")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["gpu_scheduler: durations not kept: *delete it*"])
    assert path.read_text() == "mine"


# --- beside other plugins ----------------------------------------------------------------------


def test_the_clock_of_pytest_timeout_stands_still_while_others_hold_the_devices(
    run: Run, pytester: pytest.Pytester
) -> None:
    """Shown by what is asked of it, in which order: nothing here takes time."""
    pytester.makeconftest(
        """
import pytest
from gpu_scheduler import plugin

log = []

@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item, settings):
    log.append(f"set {settings.timeout:g}")
    return (yield)

@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer(item):
    log.append("cancel")
    return (yield)

@pytest.fixture(autouse=True)
def noted(monkeypatch):
    take = plugin.lease
    monkeypatch.setattr(plugin, "lease", lambda *a, **k: (log.append("lease"), take(*a, **k))[1])

def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line("; ".join(log))
"""
    )
    result = run("def test_it(gpu_lease): pass\n", "-p", "pytest_timeout", "--timeout=30")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["set 30; cancel; lease; set 30; cancel"])


def test_a_test_that_runs_out_of_time_gives_its_devices_back(run: Run) -> None:
    result = run(
        """
import signal

@pytest.mark.gpus(2)
@pytest.mark.timeout(0.2)
def test_stuck(gpu_lease):
    signal.pause()

@pytest.mark.gpus(2)
def test_next(gpu_lease): pass
""",
        *("-p", "pytest_timeout", "--tprig-lease-wait=0"),
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*Failed: Timeout*"])


def test_beside_the_suites_own_plugins(run: Run, pytester: pytest.Pytester) -> None:
    """The marker and the fixture serve tests of the checkout that use no rig."""
    words = ("-p", "fixtures.plugin", "-p", "tprig.pytest_guard")
    result = run("def test_it(gpu_lease): pass\n", *words, "--tprig-platform=cpu")
    result.assert_outcomes(passed=1)
    assert result.ret == 0


# --- workers -----------------------------------------------------------------------------------

WITNESSED = """
import contextlib, time, pathlib

@contextlib.contextmanager
def witnessed(held):
    names = [pathlib.Path(os.environ["WITNESS"], device.id) for device in held.devices]
    for name in names:
        name.touch(exist_ok=False)
    yield
    for name in names:
        name.unlink()
"""


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which each holder of a device makes a file of its own, which must be new."""
    folder = tmp_path / "witness"
    folder.mkdir()
    monkeypatch.setenv("WITNESS", str(folder))
    return folder


def test_workers_share_the_gpus_without_waiting(
    spread: Run, pytester: pytest.Pytester, host: FakeNvml, witness: Path
) -> None:
    suite = """
@pytest.mark.gpus(2)
@pytest.mark.parametrize("n", range(2))
def test_wide(gpu_lease, n, record_property):
    with witnessed(gpu_lease):
        assert seen_by_a_child() == "0,1"

@pytest.mark.parametrize("n", range(4))
def test_narrow(gpu_lease, n):
    with witnessed(gpu_lease):
        assert seen_by_a_child() == str(gpu_lease.devices[0].index)

def test_none(): pass
"""
    result = spread(WITNESSED + suite, "--junitxml=junit.xml", "-v")
    result.assert_outcomes(passed=7)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["scheduling tests via GpuScheduling"])
    # The rests are neither shown nor counted.
    result.stdout.fnmatch_lines(["2 workers [[]7 items[]]", "*[[]100%[]]*"])
    result.stdout.no_fnmatch_line("*rest*")
    assert list(witness.iterdir()) == []
    found = properties(pytester.path / "junit.xml")
    assert len(found) == 7
    assert found["test_wide[0]"]["gpu_uuids"] == ",".join(gpu.uuid for gpu in host.gpus)
    assert len(recorded(pytester)) == 7


def test_recorded_durations_decide_the_order(spread: Run, pytester: pytest.Pytester) -> None:
    names = [f"test_suite.py::test_it[{n}]" for n in range(3)]
    known = dict(zip(names, (1.0, 9.0, 5.0), strict=True))
    durations.record(pytester.path / durations.FILE, known)
    suite = """
@pytest.mark.gpus(2)
@pytest.mark.parametrize("n", range(3))
def test_it(gpu_lease, n):
    with open("order", "a") as file:
        file.write(f"{n} ")
"""
    spread(suite).assert_outcomes(passed=3)
    assert (pytester.path / "order").read_text() == "1 2 0 "
    assert recorded(pytester)[names[1]] < 9.0


def test_a_group_stays_on_one_worker_and_keeps_its_fixtures(
    spread: Run, pytester: pytest.Pytester
) -> None:
    suite = """
@pytest.fixture(scope="module")
def engine():
    with open("engines", "a") as file:
        file.write("up ")
    yield
    with open("engines", "a") as file:
        file.write("down ")

@pytest.mark.xdist_group("engine")
@pytest.mark.gpus(2)
@pytest.mark.parametrize("n", range(3))
def test_it(engine, n): pass

@pytest.mark.parametrize("n", range(3))
def test_other(gpu_lease, n): pass
"""
    spread(suite).assert_outcomes(passed=6)
    assert (pytester.path / "engines").read_text() == "up down "


def test_a_worker_that_crashes_gives_its_devices_back_and_the_run_goes_on(
    spread: Run, witness: Path
) -> None:
    suite = """
@pytest.mark.xdist_group("engine")
@pytest.mark.gpus(2)
@pytest.mark.parametrize("n", range(3))
def test_it(gpu_lease, n):
    if n == 1:
        os._exit(3)
    with witnessed(gpu_lease):
        pass
"""
    result = spread(WITNESSED + suite)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*crashed while running *test_it[[]1[]]*"])
    lease(2, kind="cuda", test="after", wait_s=60).release()


def test_what_workers_can_never_be_given_is_an_error(spread: Run) -> None:
    result = spread(TOO_MUCH)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, errors=2)


def test_or_leaves_the_run_unknown_when_it_may_be_skipped(spread: Run) -> None:
    result = spread(TOO_MUCH, "--tprig-allow-unsatisfiable")
    assert result.ret == EXIT_UNKNOWN
    result.assert_outcomes(passed=1, skipped=2)


def test_a_session_that_cannot_be_torn_down_is_told(spread: Run) -> None:
    suite = """
@pytest.fixture(scope="session")
def engine():
    yield
    raise RuntimeError("the engine would not stop")

def test_it(engine): pass
"""
    result = spread(suite)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*RuntimeError: the engine would not stop"])


def test_auto_is_a_worker_for_each_device(spread: Run, host: FakeNvml) -> None:
    result = spread("def test_it(gpu_lease): pass\n", "-n", "auto", "--maxprocesses=7")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*2 workers*"])


def test_the_first_failure_ends_the_run(spread: Run) -> None:
    suite = """
@pytest.mark.gpus(2)
@pytest.mark.parametrize("n", range(5))
def test_it(gpu_lease, n): assert False
"""
    result = spread(suite, "-x")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(failed=1)


def test_xdist_may_hand_out_as_it_likes(spread: Run, witness: Path) -> None:
    """Leases hold under any scheduler; tests then wait in their queue."""
    suite = """
@pytest.mark.gpus(2)
@pytest.mark.parametrize("n", range(4))
def test_it(gpu_lease, n):
    with witnessed(gpu_lease):
        pass
"""
    spread(WITNESSED + suite, "--dist=load").assert_outcomes(passed=4)


def test_without_xdist_there_is_no_such_mode(run: Run) -> None:
    result = run("def test_it(): pass\n", "--dist=gpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unrecognized arguments: --dist=gpu*"])


def test_nothing_heavy_is_imported(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
import json, sys

def pytest_sessionfinish():
    foreign = {"torch", "vllm", "numpy", "xdist", "rich"} & set(sys.modules)
    open("foreign", "w").write(json.dumps(sorted(foreign)))
"""
    )
    run("def test_it(): pass\n", apart=True).assert_outcomes(passed=1)
    assert json.loads((pytester.path / "foreign").read_text()) == []
