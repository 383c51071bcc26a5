from __future__ import annotations

import time
from pathlib import Path

import pytest

import gpu_scheduler
from gpu_scheduler import host as this_host
from gpu_scheduler import quarantines
from gpu_scheduler.errors import QuarantineError
from gpu_scheduler.locks import LockFolder
from tests.gpu_scheduler.children import Child


def test_quarantine_is_seen_by_other_processes_and_lifted(folder: LockFolder) -> None:
    script = """
import gpu_scheduler
gpu_scheduler.quarantine("GPU-1", "leaked 3 GiB", 60)
say("done")
wait()
"""
    with Child(script) as child:
        assert child.hear() == "done"
        found = quarantines.read(folder, "GPU-1")
    assert found is not None
    assert found.reason == "leaked 3 GiB"
    assert found.expires_unix_s - found.since_unix_s == pytest.approx(60)
    assert "leaked 3 GiB" in str(found)
    assert gpu_scheduler.lift_quarantine("GPU-1") == found
    assert quarantines.read(folder, "GPU-1") is None
    assert gpu_scheduler.lift_quarantine("GPU-1") is None


def test_quarantine_ends_by_itself(folder: LockFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    made = gpu_scheduler.quarantine("GPU-1", "leaked", 60)
    monkeypatch.setattr(time, "clock_gettime", lambda _: made.expires_boot_s)
    assert quarantines.read(folder, "GPU-1") is None


@pytest.mark.parametrize("jump_s", [-1e8, 1e8])
def test_clock_that_is_set_neither_ends_a_quarantine_nor_makes_it_last(
    folder: LockFolder, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    made = gpu_scheduler.quarantine("GPU-1", "leaked", 60)
    monkeypatch.setattr(time, "time", lambda: made.since_unix_s + jump_s)
    assert quarantines.read(folder, "GPU-1") == made
    monkeypatch.setattr(time, "clock_gettime", lambda _: made.expires_boot_s)
    assert quarantines.read(folder, "GPU-1") is None


def test_quarantine_ends_with_the_boot(folder: LockFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_scheduler.quarantine("GPU-1", "leaked", 60)
    monkeypatch.setattr(this_host, "boot_id", lambda: "another")
    assert quarantines.read(folder, "GPU-1") is None


def test_later_quarantine_replaces_an_earlier_one(folder: LockFolder) -> None:
    gpu_scheduler.quarantine("GPU-1", "a reason that is much longer", 60)
    later = gpu_scheduler.quarantine("GPU-1", "short", 90)
    assert quarantines.read(folder, "GPU-1") == later


@pytest.mark.parametrize("expires_s", [0, -1, float("inf"), float("nan")])
def test_quarantine_must_end(expires_s: float) -> None:
    with pytest.raises(QuarantineError, match="ends by itself"):
        gpu_scheduler.quarantine("GPU-1", "leaked", expires_s)


def test_quarantine_that_cannot_be_written_is_an_error(folder: LockFolder, lock_path: Path) -> None:
    (lock_path / "GPU-1.quarantine").mkdir()
    with pytest.raises(QuarantineError, match="cannot be written"):
        gpu_scheduler.quarantine("GPU-1", "leaked", 60)


@pytest.mark.parametrize("garbage", [b"", b"\0", b"{", b"[]", b'{"device_id":"GPU-1"}'])
def test_garbage_is_no_quarantine(folder: LockFolder, lock_path: Path, garbage: bytes) -> None:
    (lock_path / "GPU-1.quarantine").write_bytes(garbage)
    assert quarantines.read(folder, "GPU-1") is None


def test_escape_codes_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in str(gpu_scheduler.quarantine("GPU-1", "\x1b[2Jleaked", 60))
