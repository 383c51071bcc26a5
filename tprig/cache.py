"""Where what can be built again is kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """The folder of reference checkpoints in the user's cache (`XDG_CACHE_HOME`, else `~/.cache`).

    A relative `XDG_CACHE_HOME` is ignored, as the XDG Base Directory Specification has it.

    Raises:
        RuntimeError: if the user has no home.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "tprig" / "checkpoints"
