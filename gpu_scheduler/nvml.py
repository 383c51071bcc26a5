"""Reads the GPUs of this host through NVML. No other module imports pynvml."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from gpu_scheduler.device import Gpu, GpuProcess

_NO_ANSWER = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
}
"""Errors by which a healthy GPU or an older driver says that it does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The GPUs that can be used, in PCI bus order, and what is wrong with the others."""

    devices: tuple[Gpu, ...]
    reason: str | None
    """Why there are none, or which were left out and why; `None` when all is well."""


def inventory() -> Inventory:
    """Takes a snapshot of every GPU that the driver lets this process see.

    CUDA_VISIBLE_DEVICES plays no part here: NVML does not know it (see `visibility`).

    Returns:
        Never an exception for want of a GPU: without a library, a driver or a device the inventory
        is empty and says why. A GPU that the driver cannot read ("GPU is lost") is left out and
        named in the reason; `index` then counts the readable ones.
    """
    try:
        with _session():
            return _read_all()
    except pynvml.NVMLError as error:
        return Inventory(devices=(), reason=f"NVML does not answer: {error}")


@contextmanager
def _session() -> Iterator[None]:
    """Pairs init with shutdown: an open session would keep the driver busy and outlive a fork."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _read_all() -> Inventory:
    gpus: list[Gpu] = []
    faults: list[str] = []
    for number in range(pynvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_read(number))
        except pynvml.NVMLError as error:
            faults.append(f"GPU {number} by NVML's count: {error}")
    # The bus id has a fixed width, so that text order is bus order.
    gpus.sort(key=lambda gpu: gpu.pci_bus_id)
    devices = tuple(replace(gpu, index=index) for index, gpu in enumerate(gpus))
    if not devices and not faults:
        faults.append("the NVIDIA driver is loaded but shows no GPU")
    return Inventory(devices=devices, reason="; ".join(faults) or None)


def _read(number: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    total_bytes, used_bytes, reserved_bytes = _memory(handle)
    mig = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    return Gpu(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        index=number,
        name=pynvml.nvmlDeviceGetName(handle),
        pci_bus_id=_bus_id(pynvml.nvmlDeviceGetPciInfo(handle)),
        memory_total_bytes=total_bytes,
        memory_used_bytes=used_bytes,
        memory_reserved_bytes=reserved_bytes,
        driver_version=_ask(pynvml.nvmlSystemGetDriverVersion),
        cuda_driver_version=_cuda_version(_ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)),
        processes=_processes(handle),
        mig_enabled=None if mig is None else mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
    )


def _ask(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (pynvml is untyped)
    """Returns the answer, or `None` where the GPU or the driver has none to give."""
    try:
        return call(*args, **kwargs)
    except pynvml.NVMLError as error:
        if error.value in _NO_ANSWER:
            return None
        raise


def _memory(handle: object) -> tuple[int | None, int | None, int | None]:
    """Returns total, used and reserved bytes; the first struct counts the reserve as used."""
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle, version=pynvml.nvmlMemory_v2)
    if memory is not None:
        return int(memory.total), int(memory.used), int(memory.reserved)
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    if memory is not None:
        return int(memory.total), int(memory.used), None
    return None, None, None


def _processes(handle: object) -> tuple[GpuProcess, ...] | None:
    """Returns the compute processes; the unversioned call would hide an older driver's answer."""
    found = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    if found is None:
        found = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v2, handle)
    if found is None:
        return None
    return tuple(GpuProcess(pid=int(each.pid), used_bytes=each.usedGpuMemory) for each in found)


def _bus_id(pci: Any) -> str:  # noqa: ANN401 (pynvml is untyped)
    return f"{pci.domain:08X}:{pci.bus:02X}:{pci.device:02X}.0"


def _cuda_version(encoded: int | None) -> str | None:
    """Decodes 1000 * major + 10 * minor."""
    return None if encoded is None else f"{encoded // 1000}.{encoded % 1000 // 10}"
