"""How long tests took, kept between runs: `.tprig/durations.json`.

Time that a test waited for its devices is left out: it says nothing of the test.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import filelock
import msgspec

FILE = Path(".tprig") / "durations.json"
"""Where a project keeps them, below its root."""

_LOCK_PATIENCE_S = 10.0
_MODE = 0o644


class DurationsError(Exception):
    """The file is there but holds no durations, or cannot be read or written."""


class _Document(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1]
    seconds: dict[str, Annotated[float, msgspec.Meta(ge=0)]]


def load(path: Path) -> dict[str, float]:
    """Returns seconds by test id; empty where nothing was recorded yet.

    Raises:
        DurationsError: What is there cannot be read or is something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Document).seconds
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DurationsError(
            f'{path}: expected {{"version": 1, "seconds": {{"<test>": <seconds>}}}}, found: '
            f"{error}; delete it, and the next run writes it anew"
        ) from None


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
    encoded = msgspec.json.encode(_Document(version=1, seconds=rounded))
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(encoded, indent=1) + b"\n")
        Path(draft).chmod(_MODE)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
