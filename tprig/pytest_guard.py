"""Explains, to users of the suites, the one mistake that pytest cannot: `--tprig-model /a/path`.

The options of the suites come with their checkout. Before pytest has found it, it takes an existing
path behind an option that it does not know for a test to run, and looks for the checkout there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest


def misread(arguments: Sequence[str], rootdir: Path) -> str | None:
    """What is to be written instead, when pytest was led away from the checkout.

    Args:
        arguments: pytest's, in order.
        rootdir: where pytest believes the checkout to be.
    """
    if (rootdir / "fixtures" / "plugin.py").is_file():
        return None
    for option, value in pairwise(arguments):
        if option.startswith("--tprig-") and "=" not in option and Path(value).exists():
            return f"{option}={value}"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Refuse, by its remedy, what would end in "unrecognized arguments"."""
    instead = misread(args, early_config.rootpath)
    if instead is not None:
        raise pytest.UsageError(
            f"write {instead} with an equals sign: pytest takes an existing path behind a space "
            f"for a test to run, and looked for tprig's checkout in {early_config.rootpath}"
        )
