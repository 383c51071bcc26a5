"""What the controller asks of the host. How it deals with xdist is shown in `test_plugin`."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import gpu_scheduler
from gpu_scheduler.workers import MODE, Controller
from tests.fakes.nvml import GIB, FakeNvml


@pytest.fixture(autouse=True)
def _no_answer_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)


def config(tmp_path: Path | None = None, *, dist: str = MODE, kind: str = "cuda") -> pytest.Config:
    options = {"dist": dist, "--tprig-lease-kind": kind}
    return cast("pytest.Config", SimpleNamespace(getoption=options.__getitem__, rootpath=tmp_path))


def free(tmp_path: Path, ours: set[int]) -> int:
    scheduling = Controller().pytest_xdist_make_scheduler(config(tmp_path))
    assert scheduling is not None
    return scheduling._free(ours)


def test_other_modes_are_xdists_own(tmp_path: Path) -> None:
    other = config(tmp_path, dist="load")
    assert Controller().pytest_xdist_make_scheduler(other) is None
    assert Controller().pytest_xdist_auto_num_workers(other) is None


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_auto_is_as_many_workers_as_devices(kind: str) -> None:
    devices = 2 if kind == "cuda" else len(gpu_scheduler.core_slots())
    assert Controller().pytest_xdist_auto_num_workers(config(kind=kind)) == devices


def test_auto_without_a_device_is_xdists_own(host: FakeNvml) -> None:
    host.gpus = []
    assert Controller().pytest_xdist_auto_num_workers(config()) is None


def test_auto_is_what_the_user_has_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "7")
    assert Controller().pytest_xdist_auto_num_workers(config()) is None


def test_devices_that_nobody_else_holds_are_free(tmp_path: Path) -> None:
    assert free(tmp_path, set()) == 2
    with gpu_scheduler.lease(1, kind="cuda", test="mine", wait_s=0):
        assert free(tmp_path, {os.getpid()}) == 2
        assert free(tmp_path, {1}) == 1


def test_devices_in_use_without_a_lease_are_not_free(host: FakeNvml, tmp_path: Path) -> None:
    host.gpus[0].processes = [(os.getppid(), GIB)]
    assert free(tmp_path, set()) == 1
    assert free(tmp_path, {os.getppid()}) == 2, "a worker that uses CUDA itself"


def test_devices_in_quarantine_are_not_free(host: FakeNvml, tmp_path: Path) -> None:
    gpu_scheduler.quarantine(host.gpus[0].uuid, "leaked", 60)
    assert free(tmp_path, set()) == 1


def test_a_lock_folder_that_cannot_be_used_frees_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each test then says why, when it asks for its lease."""
    monkeypatch.setenv("TPRIG_LOCK_DIR", "/dev/null")
    assert free(tmp_path, set()) == 0
