"""Writes a bundle: documents in one step, streams line by line, the manifest last."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from tprig import evidence
from tprig.bundle import files, manifest
from tprig.bundle.files import MANIFEST, BundleError, printable

BUFFER_BYTES = 256 * 1024
_FLUSHED_STREAMS = {"ledger", "engine"}


class StreamWriter:
    """One stream that is being written; made by `Writer.stream`.

    As a context manager it writes the end record on leaving in order; an exception leaves the
    stream without one, for what was to be recorded is not all there.
    """

    def __init__(self, target: Path, path: str, header: evidence.Header, *, flush: bool) -> None:
        self._path = path
        self._target = target
        self._flush_each = flush
        self._decoder = _decoder(header.stream)
        self._pending = bytearray()
        self._accepted = 0
        self._torn = False
        self._closed = False
        # Re-entrant: a signal handler may write to the stream that it interrupted.
        self._lock = threading.RLock()
        with files.reporting(path, "nothing of it was kept"):
            self._descriptor = _create(target)
        # Bytes known to be whole lines on disk.
        self._whole_bytes = 0
        self._begin(header)

    def _begin(self, header: evidence.Header) -> None:
        self._pending += files.encode(header) + b"\n"
        try:
            self.flush()
        except BaseException:
            self._release()
            self._target.unlink(missing_ok=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def write(self, record: evidence.Record) -> None:
        """Appends one record.

        Raises:
            BundleError: when the record does not belong to this stream, would not be read back as
                it is (a NaN, which JSON lacks), or cannot be written.
        """
        line = files.encode(record)
        _check_survives(self._path, record, line, self._decoder)
        self._append(line + b"\n", 1)

    def append(self, lines: bytes) -> None:
        """Appends records that are encoded already: whole lines of JSON, each with its newline.

        Raises:
            BundleError: when the last line has no newline, or it cannot be written.
        """
        if lines and not lines.endswith(b"\n"):
            raise BundleError(f"{self._path}: expected whole lines, the last one has no newline")
        self._append(lines, lines.count(b"\n"))

    def _append(self, lines: bytes, records: int) -> None:
        with self._lock:
            self._demand_open()
            self._accepted += records
            self._pending += lines
            if self._flush_each or len(self._pending) >= BUFFER_BYTES:
                self.flush()

    def flush(self) -> None:
        """Hands to the kernel what was written so far, so that a kill of this process keeps it.

        Raises:
            BundleError: when it cannot be written. Whole lines are kept, the others are dropped
                and counted in the end record; writing may go on.
        """
        with self._lock:
            self._demand_open()
            if self._torn:
                self._mend()
            data = bytes(self._pending)
            self._torn = True
            self._pending.clear()
            try:
                files.write_all(self._descriptor, data)
            except OSError as error:
                self._mend()
                kept = f"its first {self._whole_bytes} bytes, all whole lines, were kept"
                raise files.failure(self._path, kept, error) from error
            self._whole_bytes += len(data)
            self._torn = False

    def _mend(self) -> None:
        """Cuts what an error or an interrupt left behind the last whole line."""
        with files.reporting(self._path, "its last line may be cut"):
            size_bytes = os.fstat(self._descriptor).st_size
            tail = os.pread(self._descriptor, size_bytes - self._whole_bytes, self._whole_bytes)
            self._whole_bytes += tail.rfind(b"\n") + 1
            os.ftruncate(self._descriptor, self._whole_bytes)
        self._torn = False

    def close(self) -> None:
        """Writes the end record and closes the file; closing twice is no error.

        Raises:
            BundleError: when the end record cannot be written; the stream then counts as cut.
        """
        with self._lock:
            if self._closed:
                return
            try:
                self._finish()
            finally:
                self._release()

    def _finish(self) -> None:
        with contextlib.suppress(BundleError):
            # What cannot be written now is dropped, and the end record says how much that was.
            self.flush()
        # Counted in the file: an interrupt may have come between a write and our own count.
        records = _count_lines(self._descriptor) - 1
        end = evidence.End(records=records, dropped=max(self._accepted - records, 0))
        self._pending += files.encode(end) + b"\n"
        self.flush()
        with files.reporting(self._path, "it may not survive a power failure"):
            os.fsync(self._descriptor)

    def abandon(self) -> None:
        """Closes the file without an end record: the stream counts as cut."""
        with self._lock:
            if self._closed:
                return
            with contextlib.suppress(BundleError):
                self.flush()
            self._release()

    def _release(self) -> None:
        self._closed = True
        os.close(self._descriptor)

    def _demand_open(self) -> None:
        if self._closed:
            raise BundleError(f"{self._path} is closed: nothing can be appended to it")

    @property
    def closed(self) -> bool:
        """True after `close` or `abandon`."""
        return self._closed


def _claimed(root: Path) -> int | None:
    """A descriptor that holds the folder for this writer: two runs may begin at the same moment.

    Raises:
        BundleError: when another one holds it.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BundleError(
            f"{printable(str(root))} is being written by another run; name another folder"
        ) from None
    except OSError:
        # Some network file systems lock no folders: what is left is to look whether it is empty.
        os.close(descriptor)
        return None
    return descriptor


class Writer:
    """Writes a bundle into a folder of its own.

    Attributes:
        root: The folder.
        bundle: The bundle's id: what the header of its ledger must name as the subject.

    Raises:
        BundleError: when the folder cannot be made, or holds something.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bundle = files.bundle_id(root)
        self._streams: list[StreamWriter] = []
        # Engines that run side by side are recorded by a thread each.
        self._lock = threading.RLock()
        with files.reporting(str(root), "nothing was written"):
            root.mkdir(parents=True, exist_ok=True)
            claim = _claimed(root)
            if claim is not None:
                weakref.finalize(self, os.close, claim)
            occupied = next(root.iterdir(), None)
        if occupied is not None:
            raise BundleError(
                f"{printable(str(root))} is not empty (it holds '{printable(occupied.name)}'): "
                "a bundle begins in an empty folder; name another one"
            )

    def path(self, path: str) -> Path:
        """The absolute path of a file that another process will write; makes its folder.

        Raises:
            BundleError: when `path` may not name a file of a bundle, or its folder cannot be made.
        """
        if files.checked_path(path) == MANIFEST:
            raise BundleError(f"{MANIFEST} is written by sealing the bundle, and by nothing else")
        target = self.root.absolute() / path
        with files.reporting(path, "nothing of it was written"):
            target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def document(self, path: str, record: evidence.Record) -> None:
        """Writes one document in one step, replacing an older one.

        Raises:
            BundleError: when the record would not be read back as it is, or cannot be written; an
                older version stays as it was.
        """
        _check_survives(path, record, files.encode(record), msgspec.json.Decoder(type(record)))
        target = self.path(path)
        kept = "its older version" if target.exists() else "nothing of it"
        with files.reporting(path, f"{kept} was kept"):
            files.replace(target, files.encode_document(record))

    def stream(
        self, path: str, kind: str, subject: str, *, flush: bool | None = None
    ) -> StreamWriter:
        """Begins a stream; its header is on disk when this returns.

        Args:
            path: Where, relative to the bundle.
            kind: What its records are: a key of `evidence.STREAMS`.
            subject: The run's, engine's or bundle's id.
            flush: Whether to flush each record; by default so for ledgers and engine events.

        Raises:
            BundleError: when the kind is unknown, the file exists, or it cannot be written.
        """
        if kind not in evidence.STREAMS:
            raise BundleError(
                f"{path}: unknown stream '{kind}'; known are {list(evidence.STREAMS)}"
            )
        header = evidence.Header(version=evidence.SCHEMA_VERSION, stream=kind, subject=subject)
        each = kind in _FLUSHED_STREAMS if flush is None else flush
        stream = StreamWriter(self.path(path), path, header, flush=each)
        with self._lock:
            self._streams = [s for s in self._streams if not s.closed] + [stream]
        return stream

    def seal(self) -> evidence.Manifest:
        """Writes the manifest over all that is there, replacing an older manifest.

        Streams that are still open are flushed, and sealed as they are: without an end.

        Raises:
            BundleError: when the folder holds what a bundle may not, or something cannot be
                written.
        """
        for stream in self._streams:
            if not stream.closed:
                stream.flush()
        return manifest.seal(self.root, self.bundle)


def _decoder(kind: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(evidence.STREAMS[kind])


def _check_survives(
    path: str, record: object, encoded: bytes, decoder: msgspec.json.Decoder[Any]
) -> None:
    try:
        survives = decoder.decode(encoded) == record
    except msgspec.DecodeError as error:
        raise BundleError(f"{path}: the record does not fit the schema: {error}") from error
    if not survives:
        raise BundleError(
            f"{path}: the record would be read back as another one: expected JSON's own types, and "
            "a float that JSON lacks as a word ('nan', 'inf', '-inf')"
        )


def _create(target: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.open(target, flags, 0o666)


def _count_lines(descriptor: int) -> int:
    lines, offset_bytes = 0, 0
    while chunk := os.pread(descriptor, 1024**2, offset_bytes):
        lines += chunk.count(b"\n")
        offset_bytes += len(chunk)
    return lines
