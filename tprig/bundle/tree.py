"""Reads a folder that a stranger may have made: never outside it, never without end."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self

from tprig.bundle.files import BundleError, printable

MAX_ENTRIES = 100_000
MAX_DEPTH_FOLDERS = 16
MAX_FILE_BYTES = 2 * 1024**3

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: should a file become a FIFO after it was looked at, opening it must not wait.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass
class Inventory:
    """What lies below a folder."""

    sizes_bytes: dict[str, int] = field(default_factory=dict)
    """Regular files that may be read: POSIX path -> size."""
    faults: dict[str, str] = field(default_factory=dict)
    """Whatever else lies there: path -> what is wrong with it."""


class Tree:
    """An open folder; every path is taken relative to it, and no symbolic link is followed.

    Raises:
        BundleError: when the folder itself cannot be opened.
    """

    def __init__(self, root: Path) -> None:
        try:
            self._descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BundleError(
                f"{printable(str(root))} cannot be opened as a bundle ({reason}): "
                "expected a folder that tprig wrote; check the path"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def open(self, path: str) -> BufferedReader:
        """Opens a regular file for reading.

        Raises:
            OSError: when the file is not there, not regular, or lies behind a symbolic link.
        """
        *folders, name = path.split("/")
        with self._folder(folders) as folder:
            # Looked at first: merely opening a device can have effects.
            _demand_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
            handle = os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb")
        try:
            _demand_regular(os.fstat(handle.fileno()))
        except OSError:
            handle.close()
            raise
        return handle

    def inventory(self) -> Inventory:
        """Lists what lies below the folder, within the limits of this module."""
        found = Inventory()
        for seen, (path, status) in enumerate(self._entries(found.faults), start=1):
            if seen > MAX_ENTRIES:
                found.faults["."] = f"holds more than {MAX_ENTRIES} files and folders, the limit"
                break
            _note(path, status, found)
        return found

    def _entries(self, faults: dict[str, str]) -> Iterator[tuple[str, os.stat_result]]:
        folders: list[list[str]] = [[]]
        while folders:
            here = folders.pop()
            try:
                with self._folder(here) as folder, os.scandir(folder) as entries:
                    for entry in entries:
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(status.st_mode) and len(here) < MAX_DEPTH_FOLDERS:
                            folders.append([*here, entry.name])
                        yield "/".join([*here, entry.name]), status
            except OSError as error:
                faults["/".join(here) or "."] = f"cannot be listed ({error.strerror})"

    @contextmanager
    def _folder(self, names: list[str]) -> Iterator[int]:
        current = os.dup(self._descriptor)
        try:
            for name in names:
                following = os.open(name, _FOLDER, dir_fd=current)
                os.close(current)
                current = following
            yield current
        finally:
            os.close(current)


def _demand_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(None, f"is {_kind(status)}, not a regular file")


def _note(path: str, status: os.stat_result, found: Inventory) -> None:
    if stat.S_ISDIR(status.st_mode):
        if path.count("/") >= MAX_DEPTH_FOLDERS:
            found.faults[path] = f"lies below {MAX_DEPTH_FOLDERS} folders, the limit"
    elif not stat.S_ISREG(status.st_mode):
        found.faults[path] = (
            f"is {_kind(status)}; a bundle holds regular files and folders only: remove it"
        )
    elif status.st_size > MAX_FILE_BYTES:
        found.faults[path] = f"has {status.st_size} bytes; the limit is {MAX_FILE_BYTES}"
    else:
        found.sizes_bytes[path] = status.st_size


def _kind(status: os.stat_result) -> str:
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a folder",
    }
    return kinds.get(stat.S_IFMT(status.st_mode), "a device")
