"""`tprig import --format FORMAT FILES...`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from tprig.cli.terminal import write
from tprig.importers import FORMATS, ForeignFormatError, write_bundle


def run(form: str, files: Sequence[Path], into: Path) -> int:
    """Make a bundle of foreign records, and say how to judge it.

    Raises:
        BadParameter: if there is no such format, or a file is not of it.
        BundleError: if the bundle cannot be written.
        OSError: if a file cannot be read.
    """
    if form not in FORMATS:
        known = " or ".join(FORMATS)
        raise typer.BadParameter(f"expected {known}, found '{form}'", param_hint="--format")
    try:
        ranks = FORMATS[form](files)
    except ForeignFormatError as error:
        raise typer.BadParameter(str(error), param_hint="FILES") from None
    write_bundle(into, ranks, form)
    calls = ", ".join(f"rank {rank.rank}: {len(rank.calls)}" for rank in ranks)
    write(f"{into}: {calls} collectives; judge it: tprig check {into}\n")
    return 0
