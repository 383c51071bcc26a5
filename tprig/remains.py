"""What an engine may leave on a machine, how it is found, and how it is removed.

Everything of an engine carries its id: its processes are in the host's session, its temporary
files and sockets lie in one runtime folder, and its shared-memory segments begin with one prefix.
Nothing is removed by guess.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from gpu_scheduler import host
from gpu_scheduler.owner import Owner, is_alive

SHM = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies on Linux
RECORD = "owner.json"
ENDINGS = "endings"
"""What an engine's processes note of their children's ends: lines of a pid and an exit code."""
FALLBACK = Path("/tmp")  # noqa: S108 - the folder made in it is private to the user
RUNTIME_BYTES_MAX = 64
"""A Unix socket's path may have about 107 bytes, and vLLM names its sockets by 36 characters."""
TOKEN_CHARS = 8
GONE_WAIT_S = 10.0
POLL_S = 0.02


class RuntimeFolderError(Exception):
    """There is no folder in which an engine could run."""


class Claimant(msgspec.Struct, frozen=True, kw_only=True):
    """Written into a runtime folder: whose it is, and which processes belong to it."""

    engine: str
    owner: Owner
    """The process that started the engine; only when it is certainly gone may others clean up."""
    shm_prefix: str
    host_pid: int | None = None
    host_start_token: int | None = None
    """Tells the host from a later process of the same id."""


@dataclass(frozen=True)
class Remains:
    """What of an engine is still there."""

    pids: tuple[int, ...]
    paths: tuple[Path, ...]

    def __bool__(self) -> bool:
        return bool(self.pids or self.paths)


def runtime_root() -> Path:
    """The folder that holds the runtime folders of this user's engines; made if missing.

    It lies in TMPDIR, unless that path is too long for a socket or holds what a URL may not: vLLM
    and torch pass such paths on as `ipc://` and `file://`.

    Raises:
        RuntimeFolderError: if it cannot be made, or is somebody else's.
    """
    root = _root_in(Path(tempfile.gettempdir()))
    if len(os.fsencode(root)) + 1 + TOKEN_CHARS > RUNTIME_BYTES_MAX or re.search(
        r"[#?%]", str(root)
    ):
        root = _root_in(FALLBACK)
    try:
        with contextlib.suppress(FileExistsError):
            root.mkdir(mode=0o700)
        found = root.lstat()
    except OSError as error:
        raise RuntimeFolderError(
            f"cannot make {root}: {error.strerror}; set TMPDIR to a folder that can be written"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise RuntimeFolderError(
            f"expected {root} to be a folder of user {os.getuid()}, found {_what(found)}; remove "
            "it, or set TMPDIR to a folder of your own"
        )
    return root


def _root_in(base: Path) -> Path:
    return base / f"tprig-{os.getuid()}"


def _what(found: os.stat_result) -> str:
    kind = "a folder" if stat.S_ISDIR(found.st_mode) else "no folder"
    return f"{'a symbolic link' if stat.S_ISLNK(found.st_mode) else kind} of user {found.st_uid}"


class Footprint:
    """One engine's place on the machine.

    Args:
        engine: the engine's id, for those who look.

    Raises:
        RuntimeFolderError: if it has no room.
    """

    def __init__(self, engine: str) -> None:
        token = uuid.uuid4().hex[:TOKEN_CHARS]
        self.runtime = runtime_root() / token
        self._claimant = Claimant(
            engine=engine, owner=Owner.current(engine), shm_prefix=f"tprig-{token}-"
        )
        self._write()

    @property
    def shm_prefix(self) -> str:
        """Begins the name of each shared-memory segment."""
        return self._claimant.shm_prefix

    def own(self, host_pid: int) -> None:
        """Note the host: its session is the engine's.

        Raises:
            RuntimeFolderError: if the note cannot be written; this object knows the host then.
        """
        self._claimant = msgspec.structs.replace(
            self._claimant, host_pid=host_pid, host_start_token=host.start_token(host_pid)
        )
        self._write()

    def _write(self) -> None:
        scratch = self.runtime / f".{RECORD}"
        try:
            self.runtime.mkdir(mode=0o700, exist_ok=True)
            scratch.write_bytes(msgspec.json.encode(self._claimant))
            scratch.rename(self.runtime / RECORD)
        except OSError as error:
            raise RuntimeFolderError(
                f"cannot write to {self.runtime}: {error.strerror}; make room, or set TMPDIR to "
                "another folder"
            ) from error

    def exit_code(self, pid: int) -> int | None:
        """What the engine has noted of the end of one of its processes; None if nothing (yet)."""
        with contextlib.suppress(OSError):
            for line in (self.runtime / ENDINGS).read_text(encoding="ascii").splitlines():
                if (match := re.fullmatch(rf"{pid} (-?\d+)", line)) is not None:
                    return int(match[1])
        return None

    def pids(self) -> tuple[int, ...]:
        """The engine's living processes."""
        return _session_pids(self._claimant)

    def remains(self) -> Remains:
        """What is there now, the runtime folder's own record aside."""
        return _remains(self.runtime, self._claimant)

    def clear(self) -> None:
        """Kill what lives, unlink what lies; `remains` tells what could not be removed."""
        _clear(self.runtime, self._claimant)


def sweep(root: Path | None = None) -> list[str]:
    """Clear what engines of dead owners have left.

    An engine whose owner lives, or cannot be seen from here because it is in another container,
    is left alone.

    Returns:
        The ids of the engines that have been cleared.

    Raises:
        RuntimeFolderError: if `root` is left out and there is none.
    """
    swept = []
    for runtime, claimant in _claims(root or runtime_root()):
        if is_alive(claimant.owner) is False:
            _clear(runtime, claimant)
            if not runtime.exists():
                swept.append(claimant.engine)
    return swept


def _claims(root: Path) -> Iterator[tuple[Path, Claimant]]:
    for runtime in sorted(root.iterdir()):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            data = (runtime / RECORD).read_bytes()
            yield runtime, msgspec.json.decode(data, type=Claimant)


def _session_pids(claimant: Claimant) -> tuple[int, ...]:
    """Living members of the host's session.

    The kernel lends a session's id to nobody while a member lives. Once all are gone it may, and
    the stranger who got it is then its leader, with another start time than the host's. After the
    host's machine was booted anew, every process is a stranger.
    """
    session = claimant.host_pid
    if session is None or claimant.owner.boot_id != host.boot_id():
        return ()
    if host.start_token(session) not in (None, claimant.host_start_token):
        return ()
    return tuple(pid for pid in _all_pids() if _is_member(pid, session))


def _all_pids() -> Iterator[int]:
    return (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())


def _is_member(pid: int, session: int) -> bool:
    """True for a living member.

    A zombie is gone, and only waits for its parent to notice, but not before its last thread is:
    until then it holds its files and its memory.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
        # The host itself is one before it has made the session.
        if pid == session or os.getsid(pid) == session:
            process = psutil.Process(pid)
            return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    return False


def _segments(claimant: Claimant) -> list[Path]:
    return sorted(SHM.glob(f"*{claimant.shm_prefix}*"))


def _remains(runtime: Path, claimant: Claimant) -> Remains:
    files = (p for p in runtime.rglob("*") if p.name != RECORD and not p.is_dir())
    return Remains(_session_pids(claimant), (*_segments(claimant), *sorted(files)))


def _clear(runtime: Path, claimant: Claimant) -> None:
    """Nothing is unlinked while a process lives: the record is what later sweeps find it by."""
    if not _killed(claimant):
        return
    for segment in _segments(claimant):
        with contextlib.suppress(OSError):
            segment.unlink()
    shutil.rmtree(runtime, ignore_errors=True)


def _killed(claimant: Claimant) -> bool:
    """Kill until nothing lives; False when something outlives it, stuck in the kernel."""
    deadline_s = time.monotonic() + GONE_WAIT_S
    while pids := _session_pids(claimant):
        if time.monotonic() > deadline_s:
            return False
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    return True
