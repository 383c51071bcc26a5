"""Writes a rank's stream: JSON lines with a header and an end record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TextIO

SCHEMA_VERSION = 1
"""The version of `tprig.evidence` that these records follow; a test holds the two together."""


class RankStream:
    """One rank's records of one run, flushed line by line: a crash keeps what was written."""

    def __init__(self, path: Path, run: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("x", encoding="utf-8", buffering=1)
        self._records = 0
        self._line({"type": "header", "version": SCHEMA_VERSION, "stream": "rank", "subject": run})

    def write(self, record: dict[str, Any]) -> None:
        """Append one record.

        Raises:
            OSError: if the disk is full.
        """
        self._line(record)
        self._records += 1

    def close(self) -> None:
        """Append the end record."""
        self._line({"type": "end", "records": self._records, "dropped": 0})
        self._file.close()

    def _line(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")
