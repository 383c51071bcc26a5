"""The last words of a process: how it ended, and the end of its log."""

from __future__ import annotations

import re
import signal
from pathlib import Path

TAIL_BYTES = 4096
TAIL_LINES = 20
RAISED_BYTES = 1 << 20
RAISED_CHARS = 300
_RAISED = re.compile(
    r"^(?:\([^)]*\) [^\]\n]*\] )?((?:\w+\.)*\w*(?:Error|Exception): .*)$", re.MULTILINE
)
"""Last line of a traceback, as it is or as vLLM logs that of a worker."""


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log; empty when there is none."""
    return "\n".join(_end(log, TAIL_BYTES).splitlines()[-lines:])


def raised(log: Path) -> list[str]:
    """The last lines of the tracebacks in a log: what was raised, once each, in order."""
    lines = _RAISED.findall(_end(log, RAISED_BYTES))
    return list(dict.fromkeys(line[:RAISED_CHARS] for line in lines))


def _end(log: Path, size_bytes: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - size_bytes))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


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
