"""How long tests took, kept between runs: `.tprig/durations.json`.

Time that a test waited for its devices is left out: it says nothing of the test.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import filelock

FILE = Path(".tprig") / "durations.json"
"""Where a project keeps them, below its root."""

_VERSION = 1
_LOCK_PATIENCE_S = 10.0


class DurationsError(Exception):
    """The file is there but holds no durations, or cannot be read or written."""


def load(path: Path) -> dict[str, float]:
    """Returns seconds by test id; empty where nothing was recorded yet.

    Raises:
        DurationsError: What is there cannot be read or is something else.
    """
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise DurationsError(f"{path} cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        raise DurationsError(f'{path}: expected {{"version": {_VERSION}, ...}}')
    seconds = document.get("seconds")
    if not isinstance(seconds, dict) or not all(_is_duration(each) for each in seconds.values()):
        raise DurationsError(f'{path}: expected "seconds", a number of at least 0 for each test')
    return {test: float(each) for test, each in seconds.items()}


def record(path: Path, measured: Mapping[str, float]) -> None:
    """Adds what a run measured; tests that it did not run keep what is known of them.

    Runs that end at the same time do not lose each other's, and a reader meets a whole file.

    Raises:
        DurationsError: The file holds something else, which is left as it is, or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{path}.lock", timeout=_LOCK_PATIENCE_S):
            _replace(path, load(path) | dict(measured))
    except (OSError, filelock.Timeout) as error:
        raise DurationsError(f"{path} cannot be written: {error}") from None


def _replace(path: Path, seconds: Mapping[str, float]) -> None:
    rounded = {test: round(each, 3) for test, each in sorted(seconds.items())}
    text = json.dumps({"version": _VERSION, "seconds": rounded}, indent=1)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def _is_duration(value: object) -> bool:
    # To Python a boolean is an int, though to JSON it is no number.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
