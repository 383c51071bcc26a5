"""The plugin in a pytest of its own, with none of our suites, on fake GPUs and on core slots."""

from __future__ import annotations

import json
import os

import pytest

from gpu_scheduler import durations
from gpu_scheduler.plugin import EXIT_UNKNOWN
from gpu_scheduler.scheduler import lease
from tests.fakes.nvml import GIB, FakeNvml
from tests.gpu_scheduler.runs import TOO_MUCH, Run, properties, recorded

pytest_plugins = ["pytester"]


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
    result.stdout.no_fnmatch_line("*gpu_scheduler/scheduler.py*")


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


# --- without it ---------------------------------------------------------------------------------


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
