"""Takes the Python stacks of an engine's processes before anything is done to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Iterable
from pathlib import Path

from gpu_scheduler import host
from tprig import tails

ANSWER_S = 2.0
REST_S = 0.1
"""A file that has not grown for so long is taken to be whole."""
PY_SPY_S = 20.0
POLL_S = 0.02
STACKS_SIGNAL = signal.SIGUSR2
"""What the processes of an engine listen to (`tprig_inject.process`)."""


def take(pids: Iterable[int], runtime: Path, folder: Path) -> list[Path]:
    """Save each process's stacks as `folder/<pid>.txt`.

    A process dumps its own stacks on a signal. One that does not answer, because it is stopped,
    or is not Python, or never got that far, is read from outside by py-spy where that is allowed.
    One that is dead may have dumped them as it crashed.

    Args:
        pids: the processes, living or dead.
        runtime: where they write their own stacks (`<pid>.stacks`).
        folder: where the stacks are saved; made if missing.

    Returns:
        The files written: none for a dead process without last words.

    Raises:
        OSError: if they cannot be saved.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources = {pid: runtime / f"{pid}.stacks" for pid in pids}
    sizes = {pid: _size(source) for pid, source in sources.items()}
    living = {pid for pid, size in sizes.items() if _asked(pid, size)}
    deadline_s = time.monotonic() + ANSWER_S
    files = []
    for pid, source in sources.items():
        text = _living(pid, source, sizes[pid], deadline_s) if pid in living else _words(source)
        if text:
            target = folder / f"{pid}.txt"
            target.write_text(text, encoding="utf-8")
            files.append(target)
    return files


def _asked(pid: int, size: int | None) -> bool:
    """Ask a process for its stacks; False if it is dead."""
    # A process without a stacks file has no handler, and the signal would end it.
    with contextlib.suppress(ProcessLookupError):
        if size is not None:
            os.kill(pid, STACKS_SIGNAL)
    return host.is_running(pid) is not False


def _living(pid: int, source: Path, size: int | None, deadline_s: float) -> str:
    answer = None if size is None else _answer(source, size, deadline_s)
    return answer or _spy(pid)


def _words(source: Path) -> str:
    with contextlib.suppress(OSError):
        return source.read_text(encoding="utf-8", errors="replace")
    return ""


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _answer(path: Path, size: int, deadline_s: float) -> str | None:
    """What was appended to the file, once it has come to rest."""
    seen, since_s = size, time.monotonic()
    while (now_s := time.monotonic()) < deadline_s:
        now = _size(path) or size
        if now != seen:
            seen, since_s = now, now_s
        elif seen > size and now_s - since_s >= REST_S:
            break
        time.sleep(POLL_S)
    return path.read_bytes()[size:].decode("utf-8", "replace") if seen > size else None


def _py_spy() -> str | None:
    """The one that was installed with this package; a virtual environment need not be on PATH."""
    return shutil.which("py-spy", path=sysconfig.get_path("scripts")) or shutil.which("py-spy")


def _spy(pid: int) -> str:
    py_spy = _py_spy()
    if py_spy is None:
        return f"process {pid} did not answer, and py-spy is not installed\n"
    command = [py_spy, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PY_SPY_S, check=False)
    except subprocess.TimeoutExpired:
        return f"process {pid} did not answer, and py-spy took more than {PY_SPY_S:g} s\n"
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    return said or f"process {pid} did not answer, and py-spy {tails.ending(done.returncode)}\n"
