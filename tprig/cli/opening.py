"""Opens the bundle that a command was given."""

from __future__ import annotations

from pathlib import Path

from tprig.bundle import Bundle, BundleError, load
from tprig.bundle.files import MANIFEST
from tprig.report.text import one_line


def opened(root: Path) -> Bundle:
    """Load the bundle at `root`.

    Raises:
        BundleError: when there is no folder, it cannot be opened, or it is no bundle.
    """
    try:
        names = {path.name for path in root.iterdir()}
    except OSError:
        return load(root)  # which says why it cannot be opened
    if names.isdisjoint({MANIFEST, "plan.json"}):
        raise BundleError(
            f"{one_line(str(root))} is no bundle: expected {MANIFEST} or plan.json in it, found "
            "neither; name the folder that a run wrote (its last line says where)"
        )
    return load(root)
