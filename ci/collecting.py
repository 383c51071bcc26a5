"""Asks pytest which tests there are and what each needs, in a process of its own.

Loaded by that process as a plugin (`-p ci.collecting`), it writes what was collected.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from ci.collected import Collected
from ci.errors import CiError

OUTPUT = "--ci-collected"
DEADLINE_S = 300.0


def collect(
    root: Path, tests: Sequence[str], markers: str, arguments: Sequence[str] = ()
) -> list[Collected]:
    """The tests that pytest collects, in its order.

    Raises:
        CiError: the collection failed, or found nothing: a suite without tests is no suite.
    """
    with tempfile.TemporaryDirectory(prefix="tprig-ci-") as scratch:
        output = Path(scratch) / "collected.json"
        options = ["--collect-only", "-q", "-p", "ci.collecting", f"{OUTPUT}={output}"]
        chosen = ["-m", markers] if markers else []
        done = _pytest(root, [*options, *chosen, *arguments, *tests])
        found = (
            msgspec.json.decode(output.read_bytes(), type=list[Collected])
            if (output.exists() and not done.returncode)
            else []
        )
    if not found:
        tail = " | ".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise CiError(
            expected=f"pytest to collect tests of {' '.join(tests)} with -m {markers!r}",
            found=f"exit code {done.returncode}: {tail}",
            rule="a suite that is empty or cannot be collected is never green",
            remedy="run the same with --collect-only and mend what it says",
        )
    return found


def _pytest(root: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    try:
        return subprocess.run(
            command,
            cwd=root,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        raise CiError(
            expected=f"pytest to collect within {DEADLINE_S:.0f} s",
            found="it did not",
            rule="collection imports no vLLM and takes seconds",
            remedy="see what a conftest.py or a test module does when it is imported",
        ) from None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register where to write."""
    parser.addoption(OUTPUT, type=Path)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Write what was collected."""
    found = [_described(item) for item in session.items]
    session.config.getoption(OUTPUT).write_bytes(msgspec.json.encode(found))


def _described(item: pytest.Item) -> Collected:
    markers = sorted({mark.name for mark in item.iter_markers()})
    return Collected(test=item.nodeid, gpus=_gpus(item), markers=markers)


def _gpus(item: pytest.Item) -> int:
    ranks = max((size for size in (1, 2) if item.get_closest_marker(f"tp{size}")), default=0)
    mark = item.get_closest_marker("gpus")
    asked = 0 if mark is None else mark.kwargs.get("count", mark.args[0] if mark.args else 1)
    return max(ranks, asked)
