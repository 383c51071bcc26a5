"""Suites in a pytest of their own, with the plugin and none of our suites."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_scheduler import durations
from tests.fakes.nvml import FakeNvml
from tests.gpu_scheduler.children import ROOT

Run = Callable[..., pytest.RunResult]

SUITE = """
import os, subprocess, sys
import pytest

def seen_by_a_child():
    show = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
    return subprocess.check_output([sys.executable, "-c", show], text=True).strip()
"""

TOO_MUCH = """
@pytest.mark.gpus(3)
def test_wide(gpu_lease): pass

@pytest.mark.gpus(min_free_gib=500)
def test_large(gpu_lease): pass

def test_other(): pass
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a suite with this plugin and those named; `apart=True` in a process of its own."""
    # Other plugins would be imported anew in each run.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    # In this process the plugin was imported before, where it is installed.
    twice = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    pytester.makeini(
        f"[pytest]\naddopts = --strict-markers\nfilterwarnings =\n    error\n    {twice}\n"
    )

    def run(suite: str, *words: str, apart: bool = False) -> pytest.RunResult:
        pytester.makepyfile(test_suite=SUITE + suite)
        start = pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess
        return start("-p", "gpu_scheduler.plugin", *words)

    return run


@pytest.fixture
def spread(run: Run, host: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a suite over two workers of xdist, which see the fake GPUs through the real library."""
    for name, value in host.environment.items():
        monkeypatch.setenv(name, value)

    def spread(suite: str, *words: str) -> pytest.RunResult:
        options = ("-p", "xdist", "-n2", "--dist=gpu", "--tprig-lease-wait=60")
        return run(suite, *options, *words, apart=True)

    return spread


def properties(path: Path) -> dict[str, dict[str, str]]:
    """The properties of each test in a JUnit file, by its name."""
    cases = ET.parse(path).getroot().iter("testcase")  # noqa: S314 (written by our own run)
    return {
        case.attrib["name"]: {each.attrib["name"]: each.attrib["value"] for each in props}
        for case in cases
        for props in [list(case.iter("property"))]
    }


def recorded(pytester: pytest.Pytester) -> dict[str, float]:
    return durations.load(pytester.path / durations.FILE)
