"""Takes the Python stacks of an engine's processes before anything is done to them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

ANSWER_S = 2.0
PY_SPY_S = 20.0
POLL_S = 0.02
STACKS_SIGNAL = signal.SIGUSR2
"""What the processes of an engine listen to (`tprig_inject.process`)."""


def take(pids: Iterable[int], runtime: Path, folder: Path) -> list[Path]:
    """Save each process's stacks as `folder/<pid>.txt`.

    A process dumps its own stacks on a signal. One that does not answer, because it is stopped,
    or is not Python, or never got that far, is read from outside by py-spy where that is allowed.

    Args:
        pids: the processes.
        runtime: where they write their own stacks (`<pid>.stacks`).
        folder: where the stacks are saved; made if missing.

    Returns:
        The files written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pids = list(pids)
    sizes = {pid: _size(runtime / f"{pid}.stacks") for pid in pids}
    for pid, size in sizes.items():
        # A process without a stacks file has no handler, and the signal would end it.
        if size is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACKS_SIGNAL)
    return [_save(pid, sizes[pid], runtime, folder) for pid in pids]


def _save(pid: int, size: int | None, runtime: Path, folder: Path) -> Path:
    text = None if size is None else _answer(runtime / f"{pid}.stacks", size)
    target = folder / f"{pid}.txt"
    target.write_text(text or _spy(pid), encoding="utf-8")
    return target


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _answer(path: Path, size: int) -> str | None:
    """What was appended to the file, once it has come to rest."""
    deadline_s = time.monotonic() + ANSWER_S
    before = size
    while time.monotonic() < deadline_s:
        now = _size(path) or size
        if now > size and now == before:
            return path.read_bytes()[size:].decode("utf-8", "replace")
        before = now
        time.sleep(POLL_S)
    return None


def _spy(pid: int) -> str:
    py_spy = shutil.which("py-spy")
    if py_spy is None:
        return f"process {pid} did not answer, and py-spy is not installed\n"
    command = [py_spy, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PY_SPY_S, check=False)
    except subprocess.TimeoutExpired:
        return f"process {pid} did not answer, and py-spy took more than {PY_SPY_S:g} s\n"
    return (done.stdout + done.stderr).decode("utf-8", "replace")
