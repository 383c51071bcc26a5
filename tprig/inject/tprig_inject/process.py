"""What every process of an engine does for those who watch over it."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing.popen_fork
import multiprocessing.shared_memory
import os
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PR_SET_PDEATHSIG = 1
PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
ENDINGS = "endings"
STACKS_SIGNAL = signal.SIGUSR2
"""On this signal a process writes the Python stacks of all its threads to its stacks file."""

_libc = ctypes.CDLL(None, use_errno=True)
_stacks: list[IO[str]] = []


@dataclass(frozen=True)
class Place:
    """Where an engine keeps what it leaves on the machine, so that all of it can be found."""

    runtime: Path
    """A folder of its own: temporary files, sockets, the stacks of its processes."""
    shm_prefix: str
    """Begins the name of every shared-memory segment of the engine."""


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends, and end at once if it already has.

    See prctl(2), PR_SET_PDEATHSIG: the setting is lost over fork, so each process asks anew.

    Args:
        parent_pid: the parent, as known before it could have ended.
    """
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def watch(place: Place) -> None:
    """Make this process, and every process it forks, die with its parent and tell its stacks.

    What it notices of its children's ends it notes for the client.
    """
    pids = [os.getppid()]

    def enter() -> None:
        # The pid noted last is the parent's: it was noted before the fork.
        parent_pid = pids[-1]
        pids.append(os.getpid())
        _enter(place, parent_pid)

    enter()
    os.register_at_fork(after_in_child=enter)
    _note_endings(place.runtime / ENDINGS)


def _enter(place: Place, parent_pid: int) -> None:
    die_with_parent(parent_pid)
    # Where Yama restricts ptrace(2) to ancestors, py-spy may read this process all the same.
    _libc.prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)
    # Never closed: the handlers write to its descriptor for as long as the process lives.
    _stacks.append(stacks := (place.runtime / f"{os.getpid()}.stacks").open("w", encoding="utf-8"))
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True, chain=False)
    faulthandler.enable(file=stacks, all_threads=True)


def _note_endings(path: Path) -> None:
    """Append a line of pid and exit code for each child that `multiprocessing` finds ended.

    Only a parent can learn how a process ended, and vLLM keeps it to itself.
    """
    popen: Any = multiprocessing.popen_fork.Popen
    original = popen.poll

    def poll(self: Any, *args: Any, **kwargs: Any) -> Any:
        known = self.returncode
        code = original(self, *args, **kwargs)
        if known is None and code is not None:
            with contextlib.suppress(OSError), path.open("a", encoding="ascii") as file:
                file.write(f"{self.pid} {code}\n")
        return code

    popen.poll = poll


def settle(place: Place) -> None:
    """Send temporary files, sockets and shared memory of this process to the engine's place."""
    os.environ["TMPDIR"] = os.environ["VLLM_RPC_BASE_PATH"] = str(place.runtime)
    tempfile.tempdir = str(place.runtime)
    shared_memory = multiprocessing.shared_memory
    shared_memory._SHM_NAME_PREFIX = f"/{place.shm_prefix}"  # type: ignore[attr-defined]
    # The standard library draws as many random characters as this leaves beside the prefix.
    shared_memory._SHM_SAFE_NAME_LENGTH = len(place.shm_prefix) + 9  # type: ignore[attr-defined]
