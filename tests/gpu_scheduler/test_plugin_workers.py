"""The plugin under pytest-xdist: real workers on fake GPUs, which the real library finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_scheduler import durations
from gpu_scheduler.plugin import EXIT_UNKNOWN
from gpu_scheduler.scheduler import lease
from tests.fakes.nvml import FakeNvml
from tests.gpu_scheduler.runs import TOO_MUCH, Run, properties, recorded

pytest_plugins = ["pytester"]

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
    assert recorded(pytester)[names[1]] != 9.0


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
