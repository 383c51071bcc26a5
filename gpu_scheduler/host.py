"""What this host says of itself: its boot, its processes, its cores. Linux only, from /proc."""

from __future__ import annotations

import os
import pwd
import shlex
from functools import cache
from pathlib import Path

import psutil

from gpu_scheduler.device import CoreSlot

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""`PROC_PID_INIT_INO`: the inode of the host's own PID namespace, fixed by the kernel's ABI."""
_EXITED = {b"Z", b"X"}
"""States of a process that only waits to be reaped: its descriptors, so its locks, are gone."""


@cache
def boot_id() -> str:
    """Returns the kernel's random id of this boot; containers share their host's."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def pid_namespace() -> int | None:
    """Returns the inode of this process's PID namespace, `None` where /proc hides it."""
    return _pid_namespace()


@cache
def _pid_namespace() -> int | None:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


# No process leaves its PID namespace, but a forked child may begin in another one.
os.register_at_fork(after_in_child=_pid_namespace.cache_clear)


def start_token(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot.

    Together with the boot id it tells a process from a later one that got the same pid. The wall
    clock does not: it is set back and forth under running processes.

    Args:
        pid: In this process's PID namespace.

    Returns:
        The ticks (field 22 of /proc/<pid>/stat); `None` if no such process runs or /proc hides it.
    """
    stat = _process_stat(pid)
    return None if stat is None or stat[0] in _EXITED else int(stat[19])


def is_running(pid: int) -> bool | None:
    """Says whether a process exists and has not exited; `None` where /proc hides that."""
    stat = _process_stat(pid)
    if stat is not None:
        return stat[0] not in _EXITED
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return None


def sees_all_pids() -> bool:
    """Says whether pids here are the driver's, which counts in the host's own PID namespace."""
    return pid_namespace() == _INITIAL_PID_NAMESPACE


def _process_stat(pid: int) -> list[bytes] | None:
    """Reads /proc/<pid>/stat from its third field, the state, on."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command's name, in parentheses, may itself hold spaces and parentheses.
    return stat[stat.rfind(b")") + 1 :].split()


def user_name(uid: int) -> str:
    """Returns the name of a user, or the number where the user has no name here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def command_line() -> str:
    """Returns this process's command, quoted for a shell."""
    return shlex.join(psutil.Process().cmdline())


def describe_process(pid: int) -> str:
    """Says whose process it is and what it runs, as far as this user may see.

    The driver counts pids by the host's PID namespace. Seen from another one, the same number is
    somebody else, so nothing but the number is said.
    """
    if not sees_all_pids():
        return f"pid {pid} of the host"
    try:
        process = psutil.Process(pid)
        command = shlex.join(process.cmdline())[:120]
        return printable(f"pid {pid} ({process.username()}: {command})")
    except psutil.Error:
        return f"pid {pid}"


def printable(text: str) -> str:
    """Keeps what another user wrote from steering this user's terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def core_slots() -> tuple[CoreSlot, ...]:
    """Returns one slot per logical core that this process may run on, in the kernel's order."""
    cores = sorted(os.sched_getaffinity(0))
    memory = psutil.virtual_memory()
    return tuple(
        CoreSlot(
            core=core,
            boot_id=boot_id(),
            memory_capacity_bytes=memory.total // len(cores),
            memory_free_bytes=memory.available // len(cores),
        )
        for core in cores
    )
