from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpu_scheduler import companions
from gpu_scheduler.companions import BLOCK
from gpu_scheduler.errors import CacheFolderError, LeaseTimeout
from gpu_scheduler.locks import LockFolder
from gpu_scheduler.scheduler import Lease, lease
from tests.fakes.nvml import FakeNvml, host_of
from tests.gpu_scheduler.children import Child

SHARE = """
with lease(1, kind="cuda", test="t", wait_s=60) as held:
    held.add_ports(2)
    say(held.environment["VLLM_PORT"])
    wait()
"""


def gpu() -> Lease:
    return lease(1, kind="cuda", test="mine", wait_s=0)


def test_four_engines_at_once_have_ports_of_their_own(
    monkeypatch: pytest.MonkeyPatch, host: FakeNvml
) -> None:
    """TP2 engines that start together picked the same free port (vLLM 43206)."""
    host.gpus = host_of(4).gpus
    engines = [gpu() for _ in range(4)]
    ports = [engine.add_ports(20) for engine in engines]
    assert [len(each) for each in ports] == [2 * BLOCK] * 4
    assert len({port for each in ports for port in each}) == 4 * 2 * BLOCK
    assert [engine.environment["VLLM_PORT"] for engine in engines] == [str(p[0]) for p in ports]
    for engine in engines:
        engine.release()
    assert gpu().add_ports(1).start == ports[0].start


def test_ports_of_a_killed_process_are_free_again() -> None:
    with Child(SHARE) as child:
        theirs = int(child.hear())
        with gpu() as mine:
            assert mine.add_ports(1).start != theirs
        child.kill()
        with gpu() as mine:
            assert mine.add_ports(1).start == theirs


def test_ports_on_which_somebody_listens_are_passed_by(folder: LockFolder) -> None:
    first, locks = companions.lease_ports(folder, 1)
    for lock in locks:
        lock.release()
    with socket.socket() as listener:
        listener.bind(("", first[3]))
        second, _ = companions.lease_ports(folder, 1)
    assert second.start >= first.stop


def test_no_ports_left_is_an_error(folder: LockFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companions, "PORTS_END", companions.PORTS_FIRST + BLOCK)
    _, locks = companions.lease_ports(folder, 1)
    with pytest.raises(LeaseTimeout, match="1 consecutive free ports"):
        companions.lease_ports(folder, 1)
    assert len(locks) == 1


def test_each_lease_has_a_cache_folder_that_stays_warm(tmp_path: Path) -> None:
    root = tmp_path / "caches"
    with gpu() as one, gpu() as other:
        first, second = one.add_cache(root), other.add_cache(root)
        assert first != second
        (first / "kernel").touch()
        assert one.environment["VLLM_CACHE_ROOT"] == str(first / "vllm")
        assert one.environment["TRITON_CACHE_DIR"] == str(first / "triton")
    with gpu() as later:
        assert later.add_cache(root) == first
        assert (first / "kernel").exists()


def test_cache_folder_that_cannot_be_made_keeps_no_lock(tmp_path: Path, folder: LockFolder) -> None:
    root = tmp_path / "caches"
    root.touch()
    with pytest.raises(CacheFolderError, match="Not a directory"):
        companions.lease_cache(folder, root)
    root.unlink()
    path, _ = companions.lease_cache(folder, root)
    assert path == root / "0"
