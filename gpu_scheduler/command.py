"""Runs a command on leased devices."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from gpu_scheduler.scheduler import Lease

_KILLED = 128
"""Plus the signal's number: what a shell returns for a command that a signal ended."""
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1


def run_leased(lease: Lease, command: Sequence[str]) -> int:
    """Runs a command that sees exactly the leased devices, and waits for it.

    Signals that ask this process to end are passed on, and its end decides; a terminal sends Ctrl-C
    to both anyway. Should this process be killed, the kernel kills the command too: nothing would
    hold its devices any more.

    Returns:
        The command's own exit code, or what a shell would return where a signal ended it.

    Raises:
        OSError: It could not be started.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def before_exec() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if lease.affinity is not None:
            os.sched_setaffinity(0, lease.affinity)

    process = subprocess.Popen(
        command,
        env=os.environ | lease.environment,
        preexec_fn=before_exec,  # noqa: PLW1509 (this process has one thread)
    )
    with _passed_on(process):
        code = process.wait()
    return code if code >= 0 else _KILLED - code


@contextmanager
def _passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    def forward(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
