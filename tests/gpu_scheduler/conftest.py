"""Every test of this folder locks in a folder of its own, and sees no GPU of the real host."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_scheduler import nvml
from gpu_scheduler.locks import LOCK_DIR_VARIABLE, LockFolder
from tests.fakes.nvml import FakeNvml, host_of
from tests.gpu_scheduler.runs import run, spread

__all__ = ["run", "spread"]


@pytest.fixture(autouse=True)
def lock_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "locks"
    monkeypatch.setenv(LOCK_DIR_VARIABLE, str(path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    return path


@pytest.fixture
def folder(lock_path: Path) -> LockFolder:
    return LockFolder(lock_path)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """The host's two GPUs, the same as `children.PREAMBLE` gives to other processes."""
    fake = host_of(2)
    monkeypatch.setattr(nvml, "pynvml", fake)
    return fake
