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
    return _own() / "checkpoints"


def engine_caches() -> Path:
    """The folder, beside it, of what engines compile: each lease has a numbered one below it.

    Raises:
        RuntimeError: if the user has no home.
    """
    return _own() / "engines"


def _own() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "tprig"
