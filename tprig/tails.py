"""The last words of a process: how it ended, and the end of its log."""

from __future__ import annotations

import signal
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


def ending(code: int | None) -> str:
    """How a process ended, in words.

    Args:
        code: its exit code, negative for a signal, None if that is not known.
    """
    if code is None:
        return "ended"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
