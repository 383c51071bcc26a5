"""Processes that outlived the lease under which they were started, and still hold its devices.

What a holder starts carries the lease's id in its environment. What it forks without exec does not,
for the kernel shows the environment with which a process began: it carries the id as the name of an
open descriptor, which fork hands on and exec does not. When the holder is certainly dead, whoever
takes the device next ends what of that lease still computes on it: only processes that carry that
very id and belong to the same user, and only after the kernel's lock has proven that nobody holds
the lease any more.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from gpu_scheduler.owner import LEASE_ID_VARIABLE

_TERM_S = 2.0
_KILL_S = 5.0
"""How long a process may take to end after SIGTERM, and after SIGKILL: GPU memory takes a while."""


def mark(lease_id: str) -> int | None:
    """Opens a descriptor that shows this process, and all that it forks, to be there by a lease.

    Returns:
        The descriptor, which whoever called closes; `None` where the kernel gives none.
    """
    try:
        return os.memfd_create(f"{LEASE_ID_VARIABLE}={lease_id}")
    except OSError:
        return None


def carriers(lease_id: str, pids: Iterable[int] | None = None) -> tuple[int, ...]:
    """Returns the processes that carry a lease's id, as far as this user may look.

    Args:
        lease_id: `Owner.lease_id`.
        pids: Where to look; `None` looks at all processes of this PID namespace.
    """
    if pids is None:
        pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return tuple(pid for pid in pids if pid != os.getpid() and _carries(pid, lease_id))


def reap(lease_id: str, pids: Iterable[int]) -> tuple[int, ...]:
    """Ends processes of a dead holder's lease: SIGTERM, then SIGKILL.

    Returns:
        Those that are still there: another user's, or stuck in the kernel.
    """
    return tuple(pid for pid in pids if not _end(pid, lease_id))


def _end(pid: int, lease_id: str) -> bool:
    """Ends one process; true when it is gone, or was never what it was taken for."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return not Path(f"/proc/{pid}").exists()
    try:
        # Looked up through a handle on the process: the number may be another one's by now.
        if not _carries(pid, lease_id):
            return True
        if Path(f"/proc/{pid}").stat().st_uid != os.geteuid():
            return False
        for number, patience_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S)):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
            if select.select([handle], [], [], patience_s)[0]:
                return True
    except OSError:
        return not Path(f"/proc/{pid}").exists()
    finally:
        os.close(handle)
    return False


def _carries(pid: int, lease_id: str) -> bool:
    entry = f"{LEASE_ID_VARIABLE}={lease_id}"
    with suppress(OSError):
        if entry.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return True
        return f"/memfd:{entry} (deleted)" in _open_files(pid)
    return False


def _open_files(pid: int) -> Iterator[str]:
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # It may be closed meanwhile.
            yield str(path.readlink())
