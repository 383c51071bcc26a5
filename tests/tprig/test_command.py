"""A command's output, its end, and what becomes of what it started."""

import contextlib
import os
import sys
from pathlib import Path

import psutil
import pytest

from tprig.command import CommandError, run

PATIENCE_S = 60


def test_what_it_prints_and_how_it_ends_is_returned() -> None:
    done = run(["/bin/sh", "-c", "cat; echo no >&2; exit 3"], deadline_s=30, data=b"in")
    assert (done.stdout, done.stderr, done.returncode) == (b"in", b"no\n", 3)


def test_it_runs_in_the_root_folder_and_with_the_variables_given() -> None:
    done = run(["/bin/sh", "-c", "pwd; echo $WORD"], deadline_s=30, variables={"WORD": "yes"})
    assert done.stdout == b"/\nyes\n"


def test_it_has_a_session_of_its_own() -> None:
    code = "import os; print(os.getsid(0))"
    assert int(run([sys.executable, "-c", code], deadline_s=30).stdout) != os.getsid(0)


def test_on_the_deadline_nothing_that_it_started_lives_on(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    with pytest.raises(CommandError, match=r"^no end within 1 s$"):
        run(["/bin/sh", "-c", f"sleep 1000 & echo $! > '{started}'; wait"], deadline_s=1)
    with contextlib.suppress(psutil.NoSuchProcess):
        # It was signalled, and ends when the kernel comes to it; raises if it lives on.
        psutil.Process(int(started.read_text())).wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        pytest.param("/nowhere/python", "No such file or directory", id="absent"),
        pytest.param("/etc/passwd", "Permission denied", id="no-program"),
        pytest.param("/bin/sh\0", "embedded null byte", id="no-path"),
    ],
)
def test_what_cannot_be_started_is_told(command: str, why: str) -> None:
    with pytest.raises(CommandError, match=f"^cannot be started: {why}$"):
        run([command], deadline_s=30)
