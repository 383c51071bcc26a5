from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_scheduler.command import run_leased
from gpu_scheduler.scheduler import lease
from tests.fakes.nvml import FakeNvml
from tests.gpu_scheduler.children import PATIENCE_S, ROOT


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_a_command_sees_exactly_what_is_leased(host: FakeNvml, tmp_path: Path) -> None:
    told = tmp_path / "told"
    script = f"import os; open({str(told)!r}, 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])"
    with lease(2, kind="cuda", test="mine", wait_s=0) as held:
        assert run_leased(held, python(script)) == 0
    assert told.read_text() == "0,1"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_command_runs_on_the_leased_cores() -> None:
    with lease(1, kind="cpu", test="mine", wait_s=0) as held:
        assert held.affinity is not None
        script = f"import os, sys; sys.exit(os.sched_getaffinity(0) != {set(held.affinity)})"
        assert run_leased(held, python(script)) == 0


@pytest.mark.parametrize("code", [0, 1, 2, 125, 255])
def test_its_own_exit_code_is_returned(code: int) -> None:
    with lease(1, kind="cpu", test="mine", wait_s=0) as held:
        assert run_leased(held, ["sh", "-c", f"exit {code}"]) == code


def test_a_signal_is_what_a_shell_makes_of_it() -> None:
    with lease(1, kind="cpu", test="mine", wait_s=0) as held:
        assert run_leased(held, ["sh", "-c", "kill -KILL $$"]) == 128 + signal.SIGKILL


def test_a_command_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    with lease(1, kind="cpu", test="mine", wait_s=0) as held:
        with pytest.raises(FileNotFoundError):
            run_leased(held, [str(tmp_path / "none")])
        with pytest.raises(PermissionError):
            run_leased(held, [str(tmp_path)])


PARENT = """
import sys
from gpu_scheduler.command import run_leased
from gpu_scheduler.scheduler import lease
with lease(1, kind="cpu", test="mine", wait_s=60) as held:
    sys.exit(run_leased(held, sys.argv[1:]))
"""
CHILD = """
import os, signal, sys
def end(number, frame):
    print("ended", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def parent() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, *python(CHILD)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_who_asks_it_to_end_asks_the_command(parent: subprocess.Popen[str]) -> None:
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline().strip().isdecimal()
        parent.terminate()
        assert parent.stdout.readline() == "ended\n"
        assert parent.wait(PATIENCE_S) == 7


def test_a_command_does_not_outlive_its_lease(parent: subprocess.Popen[str]) -> None:
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline().strip().isdecimal()
        parent.kill()
        # Nobody else holds the pipe: its end says that the command has ended, unheard.
        assert parent.stdout.read() == ""
    lease(len(os.sched_getaffinity(0)), kind="cpu", test="next", wait_s=PATIENCE_S).release()
