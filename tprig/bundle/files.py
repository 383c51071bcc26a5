"""What writing and reading a bundle share: its error, the rule for paths, and safe writing."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

MANIFEST = "manifest.json"
MAX_PATH_CHARACTERS = 512

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class BundleError(Exception):
    """A bundle cannot be written, sealed or opened; the message says what to do."""


def printable(text: str) -> str:
    r"""Returns `text` fit for a terminal or a log: control and undecodable characters as `\x1b`."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def path_fault(path: str) -> str | None:
    """Says why `path` may not name a file of a bundle; None when it may.

    The rule: relative, POSIX, normalised, printable, at most `MAX_PATH_CHARACTERS` long.
    """
    parts = path.split("/")
    faults = {
        f"is not 1 to {MAX_PATH_CHARACTERS} characters long": not 0
        < len(path)
        <= MAX_PATH_CHARACTERS,
        "holds a NUL": "\0" in path,
        "holds a character that cannot be printed": not path.isprintable(),
        "holds a backslash": "\\" in path,
        "is absolute": path.startswith("/"),
        "holds '..'": ".." in parts,
        "is not normalised": "" in parts or "." in parts,
    }
    return next((fault for fault, found in faults.items() if found), None)


def checked_path(path: str) -> str:
    """Returns `path`.

    Raises:
        BundleError: when `path_fault` finds fault with it.
    """
    if fault := path_fault(path):
        raise BundleError(
            f"'{printable(path)}' {fault}: a file of a bundle has a relative, normalised POSIX path"
        )
    return path


def bundle_id(root: Path) -> str:
    """The id of a bundle that is made at `root`: the folder's name."""
    return printable(root.resolve().name)[:MAX_PATH_CHARACTERS] or "bundle"


def encode(record: object) -> bytes:
    """Encodes a record on one line, the same bytes for the same record."""
    return msgspec.json.encode(record, order="deterministic")


def encode_document(record: object) -> bytes:
    """Encodes a document: indented JSON, the same bytes for the same record, newline last."""
    return msgspec.json.format(encode(record), indent=1) + b"\n"


def failure(name: str, kept: str, error: OSError) -> BundleError:
    """Says which file could not be written, why, what was kept, and what to do."""
    full = error.errno in _NO_SPACE
    remedy = "free some space, then write it again" if full else "see to the cause, then retry"
    reason = error.strerror or error
    return BundleError(f"{printable(name)} could not be written ({reason}): {kept}; {remedy}")


@contextlib.contextmanager
def reporting(name: str, kept: str) -> Iterator[None]:
    """Turns an `OSError` into the `BundleError` of `failure`."""
    try:
        yield
    except OSError as error:
        raise failure(name, kept, error) from error


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of `data`; an `OSError` may leave a part of it written."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def replace(target: Path, data: bytes) -> None:
    """Puts `data` at `target` in one step: it holds the old content or the new, never a part.

    Raises:
        OSError: the target is as it was, and no temporary file stays behind.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        _write_new(temporary, data)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _write_new(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Makes the names in `folder` durable, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Some network and overlay file systems refuse to sync a folder; the content is synced.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
