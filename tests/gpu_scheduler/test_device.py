from __future__ import annotations

from gpu_scheduler.device import CoreSlot, Device, Gpu
from tests.fakes.nvml import GIB


def gpu(
    total_bytes: int | None, used_bytes: int | None = None, reserved_bytes: int | None = None
) -> Gpu:
    return Gpu(
        uuid="GPU-1",
        index=0,
        name="NVIDIA H200",
        pci_bus_id="00000000:17:00.0",
        memory_total_bytes=total_bytes,
        memory_used_bytes=used_bytes,
        memory_reserved_bytes=reserved_bytes,
        driver_version=None,
        cuda_driver_version=None,
        processes=None,
        mig_enabled=None,
    )


def test_gpu_is_identified_by_uuid() -> None:
    device: Device = gpu(GIB)
    assert device.id == "GPU-1"


def test_free_memory_leaves_out_the_reserve() -> None:
    device = gpu(10 * GIB, used_bytes=2 * GIB, reserved_bytes=GIB)
    assert device.memory_capacity_bytes == 9 * GIB
    assert device.memory_free_bytes == 7 * GIB


def test_free_memory_when_the_reserve_is_counted_as_used() -> None:
    device = gpu(10 * GIB, used_bytes=3 * GIB)
    assert device.memory_capacity_bytes == 10 * GIB
    assert device.memory_free_bytes == 7 * GIB


def test_unknown_memory_is_none() -> None:
    assert gpu(None).memory_capacity_bytes is None
    assert gpu(None).memory_free_bytes is None
    assert gpu(GIB).memory_free_bytes is None


def test_core_slot_is_identified_by_boot_and_core() -> None:
    slot: Device = CoreSlot(
        core=3,
        boot_id="90f0e3a2-b66d-4861-8688-2287e7e2f89b",
        memory_capacity_bytes=GIB,
        memory_free_bytes=GIB,
    )
    assert slot.id == "cpu:90f0e3a2:3"
    assert slot.processes == ()
