"""Writes a stream of a rank, or of the engine core: JSON lines with a header and an end record."""

from __future__ import annotations

import contextlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
"""The version of `tprig.evidence` that these records follow; a test holds the two together."""


WITHOUT_FLOATS = frozenset({"broadcast", "calls", "decision", "operation"})
"""The records that a step of the model waits for, of integers and strings alone."""
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
"""Made once: making one takes longer than encoding a record."""


def _encoded(record: dict[str, Any]) -> bytes:
    """A line."""
    if record["type"] in WITHOUT_FLOATS:
        # What vLLM brings is much faster. It would write a NaN as null, though, which must not
        # happen in silence to records that have floats.
        line: bytes = _fast().encode_lines((record,))
        return line
    return _ENCODER.encode(record).encode() + b"\n"


@cache
def _fast() -> Any:
    import msgspec

    return msgspec.json.Encoder()


class RankStream:
    """The records of one process in one run, written line by line: a crash keeps what was written.

    A record that cannot be written is dropped and counted: a full disk must not change what the
    engine does, and what needs the stream becomes unknown.
    """

    def __init__(self, path: Path, run: str, stream: str = "rank") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._records = self._dropped = self._size_bytes = 0
        self._header = self._line(
            {"type": "header", "version": SCHEMA_VERSION, "stream": stream, "subject": run}
        )

    def write(self, record: dict[str, Any]) -> None:
        """Append one record, or count it as dropped."""
        # Records without a header would be damage: where it found no room, the file stays empty.
        if self._header and self._line(record):
            self._records += 1
        else:
            self._dropped += 1

    def close(self) -> None:
        """Append the end record."""
        if self._header:
            self._line({"type": "end", "records": self._records, "dropped": self._dropped})
        os.close(self._descriptor)

    def _line(self, record: dict[str, Any]) -> bool:
        data = _encoded(record)
        try:
            if os.write(self._descriptor, data) == len(data):
                self._size_bytes += len(data)
                return True
        except OSError:
            pass
        # Whole lines only: what a short write left is cut off again.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self._size_bytes)
            os.lseek(self._descriptor, self._size_bytes, os.SEEK_SET)
        return False
