"""`tprig export-test BUNDLE CALL`."""

from __future__ import annotations

import sys
from pathlib import Path

from tprig.cli.opening import opened
from tprig.cli.replay import DAMAGED, chosen
from tprig.cli.terminal import write
from tprig.export import export
from tprig.report.text import one_line


def run(root: Path, call: str, folder: Path) -> int:
    """Write the test and return the exit code."""
    bundle = opened(root)
    if bundle.damaged:
        for problem in bundle.problems:
            print(one_line(str(problem)), file=sys.stderr)
        return DAMAGED
    (history,) = chosen(bundle.calls, [call]).values()
    test = export(history, root, folder)
    write(f"{one_line(str(test))}\n")
    return 0
