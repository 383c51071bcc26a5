"""Exclusive locks on devices that hold across processes, users and crashes.

A lock is a `flock` on a file in a folder that everyone on the host shares. The kernel drops it
when its holder dies, however it dies: nothing has to be cleaned up, and no record is trusted.

Forks. A flock belongs to the open file, which a forked child shares: a child that outlived its
parent would keep the device locked. So every lock descriptor is close-on-exec, which covers all
that is started by `subprocess`, and is closed first thing in a child of `os.fork` (closing does
not unlock for the parent; only the last close does). What forks behind Python's back, in C and
without exec, is not covered.

`filelock.lock_descriptor` takes the flock; filelock's own `FileLock` refuses, in a sticky folder, a
file that another user made, because that user could replace it during the hold. Here users of one
host share devices and are taken to cooperate: a lease is no defence against malice.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path

import filelock

from gpu_scheduler.errors import LockFolderError
from gpu_scheduler.owner import MAX_RECORD_BYTES, Owner, parse

LOCK_DIR_VARIABLE = "TPRIG_LOCK_DIR"
DEFAULT_LOCK_DIR = Path("/tmp/gpu_scheduler")  # noqa: S108 (one path for every user, unlike TMPDIR)

# fmt: off
NETWORK_FILE_SYSTEMS = frozenset({
    "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "orangefs", "pvfs2", "smb3", "smbfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.davfs2",
    "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
})
# fmt: on
"""Types whose flock may not exclude, may fail, or may outlive a host that went away."""

_MODE_FOLDER = 0o1777
_MODE_FILE = 0o666
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_ATTEMPTS = 100
MAX_NOTE_BYTES = 16


class _Descriptors:
    """The lock descriptors of this process, none of which a forked child may keep.

    A token, never used twice, stands for a descriptor: the number itself may be somebody else's
    by the time that a lock inherited from the parent is released in a child.
    """

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self._tokens = itertools.count()
        self._open: dict[int, int] = {}
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork_in_parent,
            after_in_child=self._after_fork_in_child,
        )

    def open(self, path: str, flags: int) -> tuple[int, int]:
        """Opens a file that exists; returns its token and descriptor."""
        with self.mutex:
            descriptor = os.open(path, flags | _OPEN_FLAGS)
            token = next(self._tokens)
            self._open[token] = descriptor
            return token, descriptor

    def holds(self, token: int) -> bool:
        return token in self._open

    def close(self, token: int) -> None:
        with self.mutex:
            descriptor = self._open.pop(token, None)
            if descriptor is not None:
                os.close(descriptor)

    def _before_fork(self) -> None:
        # No thread may be between opening a file and entering it here while another one forks.
        self.mutex.acquire()

    def _after_fork_in_parent(self) -> None:
        self.mutex.release()

    def _after_fork_in_child(self) -> None:
        self.mutex = threading.RLock()
        for descriptor in self._open.values():
            with suppress(OSError):
                os.close(descriptor)
        self._open.clear()


_descriptors = _Descriptors()


class HeldLock:
    """One lock, held until `release` or the end of this process.

    The file of its record stays open meanwhile. Its end, however it comes, is the close of a file
    that was open for writing, which is what `watch` tells those who wait.
    """

    def __init__(self, folder: LockFolder, name: str, token: int, descriptor: int) -> None:
        self.name = name
        self._folder = folder
        self._token = token
        self._descriptor = descriptor
        self._record: tuple[int, int] | None = None
        self._signed = False

    def read_note(self) -> bytes:
        """Returns the few bytes that `write_note` left in the lock file itself."""
        return os.pread(self._descriptor, MAX_NOTE_BYTES, 0)

    def write_note(self, note: bytes) -> None:
        """Leaves a few bytes for the next holder: all of them or none, even if killed over it.

        Raises:
            LockFolderError: The lock file cannot be written.
        """
        path = self._folder.file(self.name, "lock")
        try:
            self._folder.overwrite(path, note.ljust(MAX_NOTE_BYTES))
        except OSError as error:
            raise _folder_error(
                self._folder.path, f"{path} cannot be written: {error.strerror}"
            ) from error

    def last_record(self) -> bytes:
        """Returns what stands beside the lock: before `sign`, what an earlier holder left."""
        with suppress(OSError):
            return os.pread(self._open_record(), MAX_RECORD_BYTES + 1, 0)
        return b""

    def sign(self, record: bytes) -> None:
        """Writes who holds the lock, for those who wait; a record that fails costs no lock."""
        with suppress(OSError):
            descriptor = self._open_record()
            self._signed = True
            os.pwrite(descriptor, record, 0)
            os.ftruncate(descriptor, len(record))

    def release(self) -> None:
        """Lets go; does nothing when already released, or in a child that inherited this object."""
        release_all((self,))

    def unlock(self) -> None:
        """The first half of `release`; who waits is not told yet."""
        with _descriptors.mutex:
            if _descriptors.holds(self._token):
                if self._signed and self._record is not None:
                    with suppress(OSError):
                        os.ftruncate(self._record[1], 0)
                _descriptors.close(self._token)

    def tell(self) -> None:
        """The second half: the close of the record tells who waits."""
        if self._record is not None:
            _descriptors.close(self._record[0])

    def _open_record(self) -> int:
        if self._record is None:
            self._record = self._folder.open_record(self.name)
        return self._record[1]


def release_all(locks: Iterable[HeldLock]) -> None:
    """Lets go of several locks, and only then tells: whoever is woken finds all of them free."""
    locks = tuple(locks)
    for lock in locks:
        lock.unlock()
    for lock in locks:
        lock.tell()


class LockFolder:
    """A folder of lock files that all users of this host share."""

    def __init__(self, path: Path, within: LockFolder | None = None) -> None:
        """Makes the folder if it is missing, and checks that locks in it can hold.

        Args:
            path: Where it is, or is to be.
            within: The lock folder that it lies in, which is made first.

        Raises:
            LockFolderError: It is a symbolic link or not a folder, may not be written, lets users
                delete each other's files, or lies on a network file system.
        """
        self.path = path
        self._within = within
        self._files: dict[tuple[str, str], str] = {}
        self._prepare()

    @classmethod
    def default(cls) -> LockFolder:
        """Opens the folder named by TPRIG_LOCK_DIR, else the one of this host."""
        path = os.environ.get(LOCK_DIR_VARIABLE) or str(DEFAULT_LOCK_DIR)
        return _checked_once(path if path.startswith("/") else str(Path(path).absolute()))

    @cached_property
    def queue(self) -> LockFolder:
        """The folder within it for whatever is not a device: who watches one is not told of both.

        Raises:
            LockFolderError: It cannot be used.
        """
        return LockFolder(self.path / "queue", within=self)

    def try_lock(self, name: str) -> HeldLock | None:
        """Takes a lock if it is free; never waits.

        Two locks of one name exclude each other within a process as they do across processes.

        Args:
            name: A device's id or another name that all agree on.

        Returns:
            The lock, or `None` when somebody holds it.

        Raises:
            LockFolderError: The lock file cannot be made, opened or locked.
        """
        path = self.file(name, "lock")
        for _ in range(_ATTEMPTS):
            # A cleaner may take the file away at any moment, and a lock on it then excludes nobody.
            try:
                return self._lock_once(name, path)
            except FileNotFoundError:
                self._publish(path)
        raise self._error(f"{path} was deleted {_ATTEMPTS} times while it was being locked")

    def read_record(self, name: str) -> Owner | None:
        """Returns what the last holder wrote; `None` if it wrote nothing or nothing readable."""
        return parse(self.read_file(name, "owner"))

    def open_record(self, name: str) -> tuple[int, int]:
        """Opens the record beside a lock for its holder, making it where it is missing.

        Returns:
            Its token and descriptor.

        Raises:
            OSError: It cannot be made or written, or is no plain file.
        """
        path = self.file(name, "owner")
        try:
            token, descriptor = _descriptors.open(path, os.O_RDWR)
        except FileNotFoundError:
            self._publish(path)
            token, descriptor = _descriptors.open(path, os.O_RDWR)
        if not _is_plain(descriptor):
            _descriptors.close(token)
            raise OSError(errno.EINVAL, "not a plain file", path)
        return token, descriptor

    def read_file(self, name: str, suffix: str) -> bytes:
        """Returns the start of a file beside a lock; nothing when it cannot be read."""
        try:
            descriptor = os.open(self.file(name, suffix), os.O_RDONLY | _OPEN_FLAGS)
        except OSError:
            return b""
        try:
            return os.read(descriptor, MAX_RECORD_BYTES + 1) if _is_plain(descriptor) else b""
        except OSError:
            return b""
        finally:
            os.close(descriptor)

    def write_file(self, name: str, suffix: str, data: bytes) -> None:
        """Replaces a file beside a lock.

        The file is written in place: in a sticky folder nobody can replace another user's file. A
        reader may so meet half a record, which it refuses. Records only explain, so that a full
        disk or a file that may not be written is no error; whoever needs it there reads it back.
        """
        path = self.file(name, suffix)
        with suppress(OSError, LockFolderError):
            if not os.path.lexists(path):
                self._publish(path)
            self.overwrite(path, data)

    def overwrite(self, path: str, data: bytes) -> None:
        """Writes a file that exists in place; does nothing to what is no plain file.

        Raises:
            OSError: It cannot be written.
        """
        descriptor = os.open(path, os.O_WRONLY | _OPEN_FLAGS)
        try:
            if _is_plain(descriptor):
                os.pwrite(descriptor, data, 0)
                os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)

    def exists(self, name: str, suffix: str) -> bool:
        """Says whether there is a file beside a lock."""
        return os.path.lexists(self.file(name, suffix))

    def file(self, name: str, suffix: str) -> str:
        """Returns the path of a file of this folder; a name cannot lead out of it."""
        path = self._files.get((name, suffix))
        if path is None:
            path = str(self.path / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.{suffix}")
            self._files[name, suffix] = path
        return path

    def _lock_once(self, name: str, path: str) -> HeldLock | None:
        token: int | None
        token, descriptor = self._open(path)
        try:
            if filelock.lock_descriptor(descriptor, blocking=False):
                _check_still_at(path, descriptor)
                _touch(descriptor)
                held = HeldLock(self, name, token, descriptor)
                token = None
                return held
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._error(f"{path} cannot be locked: {error.strerror}") from error
        finally:
            if token is not None:
                _descriptors.close(token)
        return None

    def _open(self, path: str) -> tuple[int, int]:
        try:
            # flock needs no right to write, so that even a file made 0644 can be shared.
            return _descriptors.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._error(f"{path} cannot be opened: {error.strerror}") from error

    def _publish(self, path: str) -> None:
        """Makes an empty file that all users may write, whatever the umask, in one step.

        The folder too, where it is missing.

        It gets its mode under a name of its own and is then linked into place. Opening with O_CREAT
        would not do: where `fs.protected_regular` is set, the kernel refuses that for a file that
        another user made.
        """
        self._prepare()
        try:
            descriptor, draft = tempfile.mkstemp(dir=self.path, prefix=".draft-")
            try:
                os.fchmod(descriptor, _MODE_FILE)
                with suppress(FileExistsError):
                    os.link(draft, path)
            finally:
                os.close(descriptor)
                Path(draft).unlink(missing_ok=True)
        except FileNotFoundError:
            pass  # The folder is gone again; whoever needs the file asks again.
        except OSError as error:
            raise self._error(f"{path} cannot be made: {error.strerror}") from error

    def _prepare(self) -> None:
        if self._within is not None:
            self._within._prepare()
        try:
            if not os.path.lexists(self.path):
                _make_folder(self.path)
            found = self.path.lstat()
        except OSError as error:
            raise self._error(f"{self.path} cannot be made: {error}") from error
        if stat.S_ISLNK(found.st_mode):
            raise self._error("it is a symbolic link")
        if not stat.S_ISDIR(found.st_mode):
            raise self._error("it is no folder")
        if not os.access(self.path, os.W_OK | os.X_OK, effective_ids=True):
            raise self._error(
                f"uid {os.geteuid()} may not write to it (mode {found.st_mode & 0o7777:04o})"
            )
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise self._error("everyone may delete everyone's files in it (no sticky bit)")
        check_local(self.path, Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape"))

    def _error(self, found: str) -> LockFolderError:
        return _folder_error(self.path, found)


@cache
def _checked_once(path: str) -> LockFolder:
    return LockFolder(Path(path))


def file_system(path: Path, mountinfo: str) -> str | None:
    """Returns the type of the file system that a path lies on.

    Args:
        path: Absolute, without symbolic links.
        mountinfo: The text of /proc/self/mountinfo (proc_pid_mountinfo(5)).
    """
    found: tuple[int, str] | None = None
    for line in mountinfo.rstrip("\n").split("\n"):
        mount, _, source = line.partition(" - ")
        point = Path(_unescape(mount.split(" ")[4]))
        # A later mount on the same point covers the earlier one.
        if path.is_relative_to(point) and (found is None or len(point.parts) >= found[0]):
            found = len(point.parts), source.split(" ")[0]
    return None if found is None else found[1]


def check_local(path: Path, mountinfo: str) -> None:
    """Refuses a folder on a network file system.

    Raises:
        LockFolderError: Names the file system's type and the way out.
    """
    kind = file_system(path.resolve(), mountinfo)
    if kind in NETWORK_FILE_SYSTEMS:
        raise _folder_error(path, f"it lies on {kind}, a network file system")


def _folder_error(path: Path, found: str) -> LockFolderError:
    return LockFolderError(
        expected=f"a folder of lock files at {path}",
        found=found,
        rule="it is a real folder of mode 1777 on a local disk or tmpfs, with 0666 files",
        remedy="chmod 1777 it, make room on its disk, or name another folder, one for all users, "
        f"in {LOCK_DIR_VARIABLE}",
    )


def _make_folder(path: Path) -> None:
    """Makes a folder that all users may write, whatever the umask, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    draft.chmod(_MODE_FOLDER)
    try:
        draft.rename(path)
    except OSError as error:
        draft.rmdir()
        if error.errno not in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EPERM}:
            raise
        # Somebody else made it meanwhile, which is as good.


def _is_plain(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def _check_still_at(path: str, descriptor: int) -> None:
    """Raises FileNotFoundError when the file locked is not, or no more, the one of that name."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file", path)
    if not os.path.samestat(found, os.lstat(path)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _touch(descriptor: int) -> None:
    """Makes the file young again, so that cleaners of old files pass it by."""
    with suppress(OSError):
        os.utime(descriptor)


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
