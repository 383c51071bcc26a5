from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pynvml
import pytest

from gpu_scheduler import nvml
from gpu_scheduler.device import GpuProcess
from tests.fakes.nvml import GIB, FakeGpu, FakeMig, FakeNvml, host_of
from tests.gpu_scheduler.children import ROOT


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeNvml) -> FakeNvml:
    monkeypatch.setattr(nvml, "pynvml", fake)
    return fake


def test_snapshot_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = FakeGpu(
        uuid="GPU-1",
        bus=0xAF,
        total_bytes=80 * GIB,
        reserved_bytes=GIB,
        used_bytes=3 * GIB,
        processes=[(7, 2 * GIB), (8, None)],
    )
    fake = install(monkeypatch, FakeNvml(gpus=[busy]))
    found = nvml.inventory()
    assert found.reason is None
    (gpu,) = found.devices
    assert (gpu.id, gpu.index, gpu.name) == ("GPU-1", 0, "NVIDIA H200")
    assert gpu.pci_bus_id == "00000000:AF:00.0"
    assert gpu.memory_total_bytes == 80 * GIB
    assert gpu.memory_used_bytes == 3 * GIB
    assert gpu.memory_reserved_bytes == GIB
    assert (gpu.driver_version, gpu.cuda_driver_version) == ("570.86.15", "12.8")
    assert gpu.processes == (
        GpuProcess(pid=7, used_bytes=2 * GIB),
        GpuProcess(pid=8, used_bytes=None),
    )
    assert gpu.mig_enabled is False
    assert not fake.is_open


def test_order_is_the_bus_order_not_nvmls(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [FakeGpu(uuid=f"GPU-{bus:x}", bus=bus) for bus in (0xAF, 0x17, 0x3B)]
    install(monkeypatch, FakeNvml(gpus=gpus))
    found = nvml.inventory().devices
    assert [(gpu.index, gpu.uuid) for gpu in found] == [(0, "GPU-17"), (1, "GPU-3b"), (2, "GPU-af")]


def test_old_driver_counts_the_reserve_as_used(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = frozenset({"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3"})
    old = FakeGpu(uuid="GPU-1", used_bytes=GIB, reserved_bytes=GIB, processes=[(7, GIB)])
    install(monkeypatch, FakeNvml(gpus=[old], missing=missing))
    (gpu,) = nvml.inventory().devices
    assert gpu.memory_used_bytes == 2 * GIB
    assert gpu.memory_reserved_bytes is None
    assert gpu.memory_free_bytes == old.total_bytes - 2 * GIB
    assert gpu.processes == (GpuProcess(pid=7, used_bytes=GIB),)


def test_what_the_driver_does_not_say_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = frozenset(
        {
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetComputeRunningProcesses_v2",
            "nvmlDeviceGetComputeRunningProcesses_v3",
        }
    )
    install(monkeypatch, FakeNvml(gpus=[FakeGpu(uuid="GPU-1", mig=None)], missing=missing))
    (gpu,) = nvml.inventory().devices
    assert gpu.memory_total_bytes is None
    assert gpu.memory_used_bytes is None
    assert gpu.processes is None
    assert gpu.mig_enabled is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "version mismatch"),
    ],
)
def test_machine_without_a_working_driver(
    monkeypatch: pytest.MonkeyPatch, error: int, said: str
) -> None:
    install(monkeypatch, FakeNvml(init_error=error))
    found = nvml.inventory()
    assert found.devices == ()
    assert found.reason is not None
    assert said in found.reason


def test_driver_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeNvml())
    found = nvml.inventory()
    assert found.devices == ()
    assert found.reason is not None


def test_lost_gpu_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = FakeGpu(uuid="GPU-2", bus=0x3B, error=pynvml.NVML_ERROR_GPU_IS_LOST)
    fake = install(monkeypatch, FakeNvml(gpus=[FakeGpu(uuid="GPU-1"), lost]))
    found = nvml.inventory()
    assert [gpu.uuid for gpu in found.devices] == ["GPU-1"]
    assert found.reason == "GPU 1 by NVML's count: GPU is lost"
    assert not fake.is_open


def test_real_library_answers_or_says_why() -> None:
    """In a process that has not loaded the fake one."""
    script = """
from gpu_scheduler import nvml
found = nvml.inventory()
assert found.devices or found.reason
assert [gpu.index for gpu in found.devices] == list(range(len(found.devices)))
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_another_process_loads_the_library_as_it_would_the_drivers() -> None:
    script = """
from gpu_scheduler import nvml
print(*(gpu.uuid for gpu in nvml.inventory().devices))
"""
    fake = host_of(8)
    found = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        cwd=ROOT,
        env=os.environ | fake.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert found.stdout.split() == [gpu.uuid for gpu in fake.gpus]


def test_instances_belong_to_the_gpu_that_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """A split GPU counts as its instances, not as one GPU more (ray 12413)."""
    instances = [
        FakeMig(uuid="MIG-1", total_bytes=16 * GIB, used_bytes=GIB, processes=[(7, GIB)]),
        FakeMig(uuid="MIG-2", total_bytes=32 * GIB),
    ]
    split = FakeGpu(uuid="GPU-2", bus=0x3B, mig=True, instances=instances)
    install(monkeypatch, FakeNvml(gpus=[split, FakeGpu(uuid="GPU-1")]))
    whole, parent = nvml.inventory().devices
    assert (whole.instances, whole.parent_uuid) == ((), None)
    first, second = parent.instances
    assert [each.uuid for each in parent.instances] == ["MIG-1", "MIG-2"]
    assert [each.parent_uuid for each in parent.instances] == ["GPU-2", "GPU-2"]
    assert [each.index for each in parent.instances] == [1, 1]
    assert (first.memory_used_bytes, second.memory_total_bytes) == (GIB, 32 * GIB)
    assert first.processes == (GpuProcess(pid=7, used_bytes=GIB),)
    assert first.mig_enabled is None


def test_links_are_told_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [FakeGpu(uuid=f"GPU-{bus:x}", bus=bus) for bus in (0xAF, 0x17, 0x3B)]
    install(monkeypatch, FakeNvml(gpus=gpus, nvlinks=[(0, 1)], apart=[(0, 2)]))
    found = {gpu.uuid: gpu for gpu in nvml.inventory().devices}
    assert found["GPU-af"].nvlink_peers == frozenset({"GPU-17"})
    assert found["GPU-17"].nvlink_peers == frozenset({"GPU-af"})
    assert found["GPU-3b"].nvlink_peers == frozenset()
    assert found["GPU-af"].p2p_peers == frozenset({"GPU-17"})
    assert found["GPU-17"].p2p_peers == frozenset({"GPU-af", "GPU-3b"})


def test_links_that_the_driver_does_not_know_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = host_of(2)
    fake.missing = frozenset({"nvmlDeviceGetP2PStatus"})
    install(monkeypatch, fake)
    assert [gpu.nvlink_peers for gpu in nvml.inventory().devices] == [None, None]


def test_refresh_reads_usage_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = host_of(3)
    install(monkeypatch, fake)
    known = nvml.inventory().devices
    fake.gpus[0].used_bytes = GIB
    fake.gpus[0].processes = [(7, GIB)]
    fake.gpus[1].error = pynvml.NVML_ERROR_GPU_IS_LOST
    found = nvml.refresh(known[:2])
    first = found[known[0].uuid]
    assert first == replace(
        known[0], memory_used_bytes=GIB, processes=(GpuProcess(pid=7, used_bytes=GIB),)
    )
    assert found[known[1].uuid] == "GPU is lost"
    assert len(found) == 2


def test_refresh_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = host_of(1)
    install(monkeypatch, fake)
    (known,) = nvml.inventory().devices
    fake.init_error = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert nvml.refresh([known]) == {known.uuid: "NVML does not answer: Driver Not Loaded"}
