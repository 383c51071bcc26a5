"""The last words of a process, from its log."""

from __future__ import annotations

from pathlib import Path

TAIL_BYTES = 4096
TAIL_LINES = 20


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log; empty when there is none."""
    try:
        with log.open("rb") as file:
            size_bytes = file.seek(0, 2)
            file.seek(max(0, size_bytes - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
