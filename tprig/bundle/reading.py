"""Reads single streams of a bundle that is still being written, by this process itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tprig.bundle import records
from tprig.bundle.files import BundleError
from tprig.bundle.records import MalformedError
from tprig.history import Stream


def stream(root: Path, path: str, kind: str, subject: str) -> Stream[Any]:
    """The stream at `path` of the bundle at `root`.

    Raises:
        BundleError: when it cannot be read, or is not what was written there.
    """
    try:
        with (root / path).open("rb") as handle:
            return records.read_stream(handle, path, kind, subject)
    except (OSError, MalformedError) as error:
        raise BundleError(f"{path} could not be read back: {error}") from error
