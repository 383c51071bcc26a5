"""`tprig report BUNDLE`."""

from __future__ import annotations

from pathlib import Path

from tprig.cli.opening import opened
from tprig.cli.terminal import write
from tprig.judged import judge_again
from tprig.report.markdown import markdown


def run(root: Path) -> int:
    """Print a bundle's page and return the exit code of `tprig check`."""
    bundle = opened(root)
    judged = judge_again(bundle)
    write(markdown(bundle, judged.verdicts))
    return judged.exit_code
