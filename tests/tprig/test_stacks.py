from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tprig import stacks

INJECT = Path(stacks.__file__).parent / "inject"
WATCHED = """
import os, sys, time
from pathlib import Path
from tprig_inject import process
process.watch(process.Place(Path(sys.argv[1]), "p"))
def where_it_waits():
    print("ready", flush=True)
    time.sleep(1000)
where_it_waits()
"""
BARE = """
import time
def where_it_waits():
    print("ready", flush=True)
    time.sleep(1000)
where_it_waits()
"""


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    folder = tmp_path / "runtime"
    folder.mkdir()
    return folder


@pytest.fixture
def run(runtime: Path) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Processes that wait: one that tells its stacks, and one that does not."""
    started = {}
    for name, script in (("watched", WATCHED), ("bare", BARE)):
        started[name] = subprocess.Popen(
            [sys.executable, "-c", script, str(runtime)],
            env=os.environ | {"PYTHONPATH": str(INJECT)},
            stdout=subprocess.PIPE,
            text=True,
        )
    for process in started.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


def test_a_process_tells_its_own_stacks(
    run: dict[str, subprocess.Popen[str]], runtime: Path, tmp_path: Path
) -> None:
    pid = run["watched"].pid
    first = stacks.take([pid], runtime, tmp_path / "first")
    second = stacks.take([pid], runtime, tmp_path / "second")
    assert [path.name for path in first + second] == [f"{pid}.txt"] * 2
    for path in first + second:
        # Only what it told this time.
        assert path.read_text().count("where_it_waits") == 1
        assert "most recent call first" in path.read_text()
    assert run["watched"].poll() is None


def test_one_that_does_not_listen_is_read_from_outside(
    run: dict[str, subprocess.Popen[str]], runtime: Path, tmp_path: Path
) -> None:
    pid = run["bare"].pid
    (file,) = stacks.take([pid], runtime, tmp_path / "stacks")
    text = file.read_text()
    assert f"Process {pid}" in text
    assert "where_it_waits" in text or "ermission" in text
    # The signal would have ended it.
    assert run["bare"].poll() is None


def test_one_that_is_stopped_is_read_from_outside(
    run: dict[str, subprocess.Popen[str]],
    runtime: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stacks, "ANSWER_S", 0.1)
    pid = run["watched"].pid
    os.kill(pid, signal.SIGSTOP)
    (file,) = stacks.take([pid], runtime, tmp_path / "stacks")
    text = file.read_text()
    assert "where_it_waits" in text or "ermission" in text
    assert f"Process {pid}" in text


def test_a_dead_process_s_last_words_are_kept(runtime: Path, tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
        (runtime / f"{ended.pid}.stacks").write_text("Fatal Python error: Aborted\n")
        (file,) = stacks.take([ended.pid], runtime, tmp_path / "stacks")
        assert file.read_text() == "Fatal Python error: Aborted\n"
        (runtime / f"{ended.pid}.stacks").write_text("")
        assert stacks.take([ended.pid], runtime, tmp_path / "none") == []
        (runtime / f"{ended.pid}.stacks").unlink()
        assert stacks.take([ended.pid], runtime, tmp_path / "none") == []


def test_a_zombie_is_not_waited_for(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_spy", lambda _: pytest.fail("a zombie was read from outside"))
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        (runtime / f"{ended.pid}.stacks").write_text("its last words")
        (file,) = stacks.take([ended.pid], runtime, tmp_path / "stacks")
    assert file.read_text() == "its last words"


def test_py_spy_is_found_beside_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = stacks._py_spy()
    assert found is not None
    assert Path(found).parent == Path(sysconfig.get_path("scripts"))


@pytest.mark.parametrize("tool", [None, "/bin/false", "slow"])
def test_what_cannot_be_read_says_why(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str | None
) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setattr(stacks, "_py_spy", lambda: str(slow) if tool == "slow" else tool)
    monkeypatch.setattr(stacks, "PY_SPY_S", 0.2)
    (file,) = stacks.take([os.getpid()], runtime, tmp_path / "stacks")
    words = {
        None: "py-spy is not installed",
        "/bin/false": "py-spy ended with exit code 1",
        "slow": "py-spy took more than 0.2 s",
    }
    assert words[tool] in file.read_text()


def test_a_folder_that_cannot_be_written(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        stacks.take([os.getpid()], runtime, tmp_path / "file" / "stacks")
