"""Reports from the field that a lease must survive, each as a test that plays what happened."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from gpu_scheduler import host as this_host
from gpu_scheduler import locks
from gpu_scheduler.errors import LeaseTimeout, LockFolderError, Unsatisfiable, VisibilityError
from gpu_scheduler.locks import LockFolder, check_local
from gpu_scheduler.nvml import inventory
from gpu_scheduler.placement import Topology
from gpu_scheduler.scheduler import Lease, lease
from gpu_scheduler.visibility import visible
from tests.fakes.nvml import GIB, FakeGpu, FakeMig, FakeNvml, host_of
from tests.gpu_scheduler.children import Child

LAUNCH = """
import subprocess
with lease(1, kind="cuda", test="suites/test_x.py::test_y", wait_s=60) as held:
    engine = subprocess.Popen(
        ["sleep", "600"], env=os.environ | held.environment, start_new_session=True
    )
    say(f"{engine.pid} {held.devices[0].id}")
    wait()
"""


def gpus(
    count: int,
    wait_s: float = 0,
    min_free_bytes: int | None = None,
    topology: Topology | None = None,
) -> Lease:
    return lease(
        count,
        kind="cuda",
        test="mine",
        wait_s=wait_s,
        min_free_bytes=min_free_bytes,
        topology=topology,
    )


def ids(held: Lease) -> list[str]:
    return [device.id for device in held.devices]


@pytest.fixture
def worker(host: FakeNvml) -> Iterator[int]:
    """An engine's worker that outlives its killed holder and computes on the first GPU."""
    with Child(LAUNCH) as holder:
        pid, device_id = holder.hear().split()
        host.gpus = [gpu for gpu in host.gpus if gpu.uuid == device_id]
        host.gpus[0].used_bytes = 20 * GIB
        holder.kill()
    try:
        yield int(pid)
    finally:
        subprocess.run(["kill", "-9", pid], check=False, stderr=subprocess.DEVNULL)


def release_when_gone(host: FakeNvml, pid: int) -> None:
    """Plays a driver that gives the memory back once the process is gone."""

    def look(_: int) -> None:
        if not this_host.is_running(pid):
            host.gpus[0].processes, host.gpus[0].used_bytes = [], 0

    host.on_init = look


# --- vLLM 55510: a worker outlives SIGKILL and keeps the GPU --------------------------------------


def test_vllm_55510_worker_that_outlived_its_holder_is_ended_first(
    host: FakeNvml, worker: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_host, "sees_all_pids", lambda: True)
    host.gpus[0].processes = [(worker, 20 * GIB)]
    release_when_gone(host, worker)
    with gpus(1) as held:
        assert not this_host.is_running(worker)
        assert [device.processes for device in held.devices] == [()]


def test_vllm_55510_gpu_is_not_reused_while_the_worker_is_there(
    host: FakeNvml, worker: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's, or stuck in the driver: it is named, and the GPU is not handed out."""
    monkeypatch.setattr(this_host, "sees_all_pids", lambda: True)
    monkeypatch.setattr("gpu_scheduler.orphans.reap", lambda _id, pids: tuple(pids))
    host.gpus[0].processes = [(worker, 20 * GIB)]
    for _ in range(2):  # who looks must not wipe out what is known of the dead holder
        with pytest.raises(LeaseTimeout) as caught:
            gpus(1)
        (refusal,) = caught.value.refusals
        assert f"pid {worker}" in refusal.reason
        assert "left behind" in refusal.reason
        assert "suites/test_x.py::test_y" in refusal.reason
    assert this_host.is_running(worker)


def test_vllm_55510_process_of_nobody_is_never_ended(
    host: FakeNvml, worker: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_host, "sees_all_pids", lambda: True)
    with subprocess.Popen(["sleep", "600"]) as stranger:
        host.gpus[0].processes = [(stranger.pid, 20 * GIB)]
        with pytest.raises(LeaseTimeout, match=f"pid {stranger.pid}"):
            gpus(1)
        assert stranger.poll() is None
        stranger.kill()
    assert this_host.is_running(worker), "it computes on no GPU: it may stay"


# --- vLLM 57362: memory is returned asynchronously (test_leaks), 43206: ports (test_companions) ---


def test_vllm_57362_gpu_is_handed_out_once_its_memory_is_back(host: FakeNvml) -> None:
    host.gpus = host.gpus[:1]
    host.gpus[0].used_bytes = 100 * GIB

    def give_back(sessions: int) -> None:
        if sessions == 4:
            host.gpus[0].used_bytes = 0

    host.on_init = give_back
    with gpus(1, wait_s=60, min_free_bytes=100 * GIB) as held:
        assert held.devices[0].memory_free_bytes == host.gpus[0].total_bytes - GIB // 2


# --- vLLM 46132, 51716: int() of a UUID, short UUIDs ----------------------------------------------


@pytest.mark.parametrize("outer", ["GPU-1", "GPU-1000-aaaa", "1"])
def test_vllm_46132_51716_child_is_given_ordinals_whatever_the_outside_says(
    outer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", outer)
    with gpus(1) as held:
        assert ids(held) == ["GPU-1000-aaaa"]
        assert held.environment["CUDA_VISIBLE_DEVICES"] == "1"


# --- triton 11831: workers ignore the outer CUDA_VISIBLE_DEVICES ----------------------------------


def test_triton_11831_what_the_outside_hides_is_never_leased(
    host: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.gpus = host_of(8).gpus
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    with gpus(2) as held:
        assert held.environment["CUDA_VISIBLE_DEVICES"] == "6,7"
        with pytest.raises(LeaseTimeout):
            gpus(1)


def test_triton_11831_somebodys_training_is_not_landed_on(host: FakeNvml) -> None:
    host.gpus[0].processes = [(os.getppid(), 70 * GIB)]
    with gpus(1) as held:
        assert ids(held) == [host.gpus[1].uuid]


# --- datasets 7900: 0644 lock files shut out the second user --------------------------------------


def test_datasets_7900_umask_shuts_nobody_out(lock_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with gpus(1):
            pass
    finally:
        os.umask(before)
    files = [path for path in lock_path.rglob("*") if path.is_file()]
    assert files
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666}
    folders = [lock_path, *(path for path in lock_path.rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o7777 for path in folders} == {0o1777}


# --- systemd 30760: cleaners of /tmp delete lock files --------------------------------------------


def test_systemd_30760_cleaner_frees_no_device(lock_path: Path, host: FakeNvml) -> None:
    """What it takes away between two leases is made again; a lock on a removed file is noticed."""
    for _ in range(3):
        with gpus(2):
            pass
        for path in [path for path in lock_path.rglob("*") if path.is_file()]:
            path.unlink()
    with gpus(2) as held:
        assert len(held.devices) == 2


def test_systemd_30760_folder_that_was_taken_away_is_everybodys_again(lock_path: Path) -> None:
    before = os.umask(0o077)
    try:
        gpus(1).release()
        shutil.rmtree(lock_path)
        gpus(1).release()
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o7777 for path in (lock_path, lock_path / "queue")] == [
        0o1777,
        0o1777,
    ]


def test_systemd_30760_lock_files_are_kept_young(lock_path: Path, host: FakeNvml) -> None:
    gpus(1).release()
    path = Path(LockFolder(lock_path).file(host.gpus[0].uuid, "lock"))
    os.utime(path, (0, 0))
    gpus(1).release()
    assert path.stat().st_mtime > 0


# --- flock over NFS is not exclusive --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "lustre"])
def test_flock_over_nfs_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(LockFolderError, match=f"it lies on {kind}, a network file system"):
        check_local(tmp_path, f"1 0 0:1 / / rw - {kind} filer:/ rw")


def test_flock_over_nfs_refuses_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "file_system", lambda _path, _mounts: "nfs4")
    with pytest.raises(LockFolderError, match="TPRIG_LOCK_DIR"):
        gpus(1)


# --- nvidia-docker 1483: NVML sees host pids, or none, in containers ------------------------------


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_host, "pid_namespace", lambda: 4026532000)


@pytest.mark.usefixtures("container")
def test_nvidia_docker_1483_host_pid_is_not_mistaken_for_one_of_ours(host: FakeNvml) -> None:
    host.gpus[0].processes = [(os.getppid(), 20 * GIB)]
    with gpus(1), pytest.raises(LeaseTimeout, match=f"pid {os.getppid()} of the host"):
        gpus(1)


@pytest.mark.usefixtures("container")
def test_nvidia_docker_1483_memory_of_hidden_processes_counts(host: FakeNvml) -> None:
    host.gpus[0].used_bytes = 20 * GIB
    with gpus(1) as held:
        assert ids(held) == [host.gpus[1].uuid]
        with pytest.raises(LeaseTimeout, match=r"20\.0 GiB of it in use by processes that the"):
            gpus(1)


def test_nvidia_docker_1483_orphan_is_found_by_its_lease(
    host: FakeNvml, worker: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead holder was in this container too, but the driver counts its worker otherwise."""
    monkeypatch.setattr(this_host, "sees_all_pids", lambda: False)
    host.gpus[0].processes = [(4_000_000, 20 * GIB)]
    release_when_gone(host, worker)
    with gpus(1):
        assert not this_host.is_running(worker)


# --- nvml-wrapper 57: idle memory differs by struct version ---------------------------------------


def test_nvml_wrapper_57_reserve_is_neither_used_nor_free(host: FakeNvml) -> None:
    free = [host.gpus[0].total_bytes - host.gpus[0].reserved_bytes]
    with gpus(1) as held:
        (device,) = held.devices
        assert [device.memory_free_bytes] == free
    host.missing = frozenset({"nvmlDeviceGetMemoryInfo_v2"})
    with gpus(1) as held:
        (device,) = held.devices
        assert [device.memory_free_bytes] == free


@pytest.mark.usefixtures("container")
def test_nvml_wrapper_57_reserve_of_an_old_driver_is_nobodys_memory(host: FakeNvml) -> None:
    host.missing = frozenset({"nvmlDeviceGetMemoryInfo_v2"})
    for gpu in host.gpus:
        gpu.reserved_bytes = 2 * GIB
    gpus(2).release()


# --- flux 1598: NVML order is not CUDA order without PCI_BUS_ID -----------------------------------


def test_flux_1598_child_counts_as_the_lease_did(host: FakeNvml) -> None:
    host.gpus = [FakeGpu(uuid=f"GPU-{bus:x}", bus=bus) for bus in (0xAF, 0x17, 0x3B)]
    with gpus(1) as held:
        assert ids(held) == ["GPU-17"]
        assert held.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert held.environment["CUDA_VISIBLE_DEVICES"] == "0"


def test_flux_1598_ordinals_of_a_mixed_host_are_not_guessed(
    host: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.gpus[1].name = "NVIDIA T400"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(VisibilityError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        gpus(1)


# --- ray 12413: MIG miscounted --------------------------------------------------------------------


@pytest.fixture
def split(host: FakeNvml) -> FakeGpu:
    """The first of two GPUs, split in three."""
    gpu = host.gpus[0]
    gpu.mig = True
    gpu.instances = [FakeMig(uuid=f"MIG-{n}{n}{n}{n}-aaaa") for n in range(3)]
    return gpu


def test_ray_12413_split_gpu_counts_as_its_instances(split: FakeGpu, host: FakeNvml) -> None:
    held = [gpus(1) for _ in range(4)]
    names = [each.uuid for each in split.instances] + [host.gpus[1].uuid]
    assert sorted(id_ for each in held for id_ in ids(each)) == sorted(names)
    with pytest.raises(LeaseTimeout):
        gpus(1)
    for each in held:
        # A process sees one instance, by its whole UUID; ordinals are not certain beside MIG.
        assert each.environment["CUDA_VISIBLE_DEVICES"] == ids(each)[0]


def test_ray_12413_instances_make_no_tensor_parallel_group(split: FakeGpu) -> None:
    with pytest.raises(Unsatisfiable, match="holds no MIG instance"):
        gpus(2)


def test_ray_12413_instances_are_small(split: FakeGpu, host: FakeNvml) -> None:
    with gpus(1, min_free_bytes=40 * GIB) as held:
        assert ids(held) == [host.gpus[1].uuid]


@pytest.mark.parametrize(
    ("outer", "shown"),
    [
        ("MIG-1111-aaaa", ["MIG-1111-aaaa"]),
        ("MIG-2222-aaaa,MIG-0000-aaaa", ["MIG-2222-aaaa", "MIG-0000-aaaa"]),
        ("MIG-1", ["MIG-1111-aaaa"]),
        ("MIG-", []),
        ("MIG-9", []),
        ("MIG-1111-aaaa,MIG-1", []),  # twice
        ("MIG-1111-aaaa,0,MIG-0000-aaaa", ["MIG-1111-aaaa"]),
        ("0", ["MIG-0000-aaaa"]),  # the first instance stands for a GPU that is split
        ("1", ["GPU-1000-aaaa"]),
        ("GPU-0000-aaaa", ["MIG-0000-aaaa"]),
    ],
)
def test_ray_12413_instances_of_the_outer_value(
    split: FakeGpu, outer: str, shown: list[str]
) -> None:
    assert [gpu.uuid for gpu in visible(inventory().devices, outer)] == shown


def test_gpu_that_is_lost_is_left_out_and_told(host: FakeNvml) -> None:
    host.gpus[1].error = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(Unsatisfiable, match="GPU is lost"):
        gpus(2)
    gpus(1).release()


def test_driver_that_does_not_match_its_library_is_told(host: FakeNvml) -> None:
    host.init_error = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    with pytest.raises(Unsatisfiable, match="version mismatch"):
        gpus(1)


def test_linked_gpus_are_leased_together(host: FakeNvml) -> None:
    host.gpus = host_of(4).gpus
    host.nvlinks = [(0, 2), (1, 3)]
    with gpus(2, topology="nvlink") as pair:
        assert ids(pair) == ["GPU-0000-aaaa", "GPU-2000-aaaa"]
        with gpus(1), pytest.raises(LeaseTimeout):
            gpus(2, topology="nvlink")
    with pytest.raises(Unsatisfiable, match="linked to each other over NVLink"):
        gpus(3, topology="nvlink")


def test_library_that_is_missing_is_told_in_a_process_of_its_own() -> None:
    script = """
import gpu_scheduler
try:
    gpu_scheduler.lease(1, kind="cuda", test="t", wait_s=0)
except gpu_scheduler.Unsatisfiable as error:
    print(error)
"""
    environment = os.environ | {"LD_LIBRARY_PATH": "", "FAKE_NVML_TOPOLOGY": "/nonexistent"}
    found = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver")
    assert "NVML Shared Library Not Found" in found.stdout
