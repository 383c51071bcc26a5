"""A small checkout with tests of its own, for builds that need no vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def git(folder: Path, *arguments: str) -> str:
    """Run git as somebody."""
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout


def ci(
    folder: Path, *arguments: str, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python -m ci` in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "ci", *arguments],
        cwd=folder, env=environment(variables), capture_output=True, text=True, check=False,
    )  # fmt: skip


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's, without what a CI service may have told it."""
    foreign = ("BUILDKITE", "GITHUB_", "TPRIG_CI", "PYTEST_")
    own = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    # No test of a toy needs more of pytest than what is its own, and each start would load it.
    plain = {"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return {**own, **plain, **(variables or {})}
