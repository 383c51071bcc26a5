"""What an engine may leave on a machine, how it is found, and how it is removed.

Everything of an engine carries its id: its processes are in the host's session, its temporary
files and sockets lie in one runtime folder, and its shared-memory segments begin with one prefix.
Nothing is removed by guess.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

SHM = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux
RECORD = "owner.json"
PATH_BYTES_MAX = 48
"""A Unix socket's path may have about 107 bytes; vLLM's sockets are named by 36 characters."""
GONE_WAIT_S = 10.0
POLL_S = 0.02


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """Written into a runtime folder: whose it is, and which processes belong to it."""

    engine: str
    owner_pid: int
    owner_start_s: float
    """The owner's start time, which tells it from a later process of the same id."""
    shm_prefix: str
    host_pid: int | None = None
    host_start_s: float | None = None


@dataclass(frozen=True)
class Remains:
    """What of an engine is still there."""

    pids: tuple[int, ...]
    paths: tuple[Path, ...]

    def __bool__(self) -> bool:
        return bool(self.pids or self.paths)


def runtime_root() -> Path:
    """The folder that holds the runtime folders of this user's engines; made if missing."""
    base = Path(tempfile.gettempdir())
    if len(os.fsencode(base)) > PATH_BYTES_MAX - 16:
        base = Path("/tmp")  # noqa: S108 - the folder below is private to the user
    root = base / f"tprig-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        raise PermissionError(
            f"{root} belongs to somebody else: expected a folder of user {os.getuid()}; "
            "set TMPDIR to a folder of your own"
        )
    return root


class Footprint:
    """One engine's place on the machine.

    Args:
        engine: the engine's id, for those who look.
    """

    def __init__(self, engine: str) -> None:
        token = uuid.uuid4().hex[:8]
        self.runtime = runtime_root() / token
        self.runtime.mkdir(mode=0o700)
        me = psutil.Process()
        self._claimant = Claimant(
            engine=engine,
            owner_pid=me.pid,
            owner_start_s=me.create_time(),
            shm_prefix=f"tprig-{token}-",
        )
        self._write()

    @property
    def shm_prefix(self) -> str:
        """Begins the name of each shared-memory segment."""
        return self._claimant.shm_prefix

    def own(self, host_pid: int) -> None:
        """Note the host: its session is the engine's."""
        start_s = _start_s(host_pid)
        self._claimant = msgspec.structs.replace(
            self._claimant, host_pid=host_pid, host_start_s=start_s
        )
        self._write()

    def _write(self) -> None:
        scratch = self.runtime / f".{RECORD}"
        scratch.write_bytes(msgspec.json.encode(self._claimant))
        scratch.rename(self.runtime / RECORD)

    def pids(self) -> tuple[int, ...]:
        """The engine's living processes."""
        return _session_pids(self._claimant)

    def remains(self) -> Remains:
        """What is there now, the runtime folder's own record aside."""
        return _remains(self.runtime, self._claimant)

    def clear(self) -> None:
        """Kill what lives, unlink what lies; afterwards nothing of the engine is left."""
        _clear(self.runtime, self._claimant)


def sweep(root: Path | None = None) -> list[str]:
    """Clear what engines of dead owners have left; returns the engines' ids."""
    swept = []
    for runtime, claimant in _claims(root or runtime_root()):
        if not _lives(claimant.owner_pid, claimant.owner_start_s):
            _clear(runtime, claimant)
            swept.append(claimant.engine)
    return swept


def _claims(root: Path) -> Iterator[tuple[Path, Claimant]]:
    for runtime in sorted(root.iterdir()):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            data = (runtime / RECORD).read_bytes()
            yield runtime, msgspec.json.decode(data, type=Claimant)


def _lives(pid: int, start_s: float | None) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).create_time() == start_s
    return False


def _start_s(pid: int) -> float | None:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).create_time()
    return None


def _session_pids(claimant: Claimant) -> tuple[int, ...]:
    """Living members of the host's session.

    The kernel lends a session's id to nobody while a member lives. Once all are gone it may, and
    the stranger who got it is then its leader, with another start time than the host's.
    """
    session = claimant.host_pid
    if session is None or _start_s(session) not in (None, claimant.host_start_s):
        return ()
    return tuple(process.pid for process in psutil.process_iter() if _is_member(process, session))


def _is_member(process: psutil.Process, session: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    return False


def _remains(runtime: Path, claimant: Claimant) -> Remains:
    segments = SHM.glob(f"*{claimant.shm_prefix}*")
    files = (p for p in runtime.rglob("*") if p.name != RECORD and not p.is_dir())
    return Remains(_session_pids(claimant), (*sorted(segments), *sorted(files)))


def _clear(runtime: Path, claimant: Claimant) -> None:
    deadline_s = time.monotonic() + GONE_WAIT_S
    while pids := _session_pids(claimant):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise TimeoutError(
                f"processes {pids} of engine {claimant.engine} outlived SIGKILL by "
                f"{GONE_WAIT_S:g} s; they are stuck in the kernel: see /proc/PID/stack"
            )
        time.sleep(POLL_S)
    for segment in SHM.glob(f"*{claimant.shm_prefix}*"):
        segment.unlink(missing_ok=True)
    shutil.rmtree(runtime, ignore_errors=True)
