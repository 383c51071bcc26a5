"""Reads the GPUs of this host through NVML. No other module imports pynvml."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from gpu_scheduler.device import Gpu, GpuProcess
from gpu_scheduler.readings import Reading, reasons

_NO_ANSWER = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
}
"""Errors by which a healthy GPU or an older driver says that it does not know."""
_READ = 0
"""NVML_P2P_CAPS_INDEX_READ, which pynvml defines as a tuple by mistake."""
_NVLINK = pynvml.NVML_P2P_CAPS_INDEX_NVLINK

_Peers = Mapping[int, tuple[tuple[int, ...] | None, tuple[int, ...] | None]]
"""By NVML's count of a GPU: those that it reaches over NVLink, and those that it reaches at all."""


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


def backend() -> object:
    """Returns what answers for the driver: two answers of different ones are not comparable."""
    return pynvml


@contextmanager
def _session() -> Iterator[None]:
    """Pairs init with shutdown: an open session would keep the driver busy and outlive a fork."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def refresh(gpus: Sequence[Gpu]) -> dict[str, Gpu | str]:
    """Reads memory and processes of known GPUs or MIG instances again, in one session.

    Returns:
        By UUID: the new snapshot, or why the driver cannot give one.
    """
    try:
        with _session():
            return {gpu.uuid: _reread(gpu) for gpu in gpus}
    except pynvml.NVMLError as error:
        return {gpu.uuid: f"NVML does not answer: {error}" for gpu in gpus}


def _reread(gpu: Gpu) -> Gpu | str:
    try:
        # Only a whole UUID is found.
        return replace(gpu, **_usage(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)))
    except pynvml.NVMLError as error:
        return f"{error}"


def readings(uuids: Sequence[str]) -> tuple[Reading, ...]:
    """Reads clocks, temperature, power and throttling of these GPUs, in one session.

    Returns:
        One for each GPU that answers; a MIG instance has no clocks of its own and tells nothing.
    """
    found = []
    try:
        with _session():
            for uuid in uuids:
                with suppress(pynvml.NVMLError):
                    found.append(_reading(uuid, pynvml.nvmlDeviceGetHandleByUUID(uuid)))
    except pynvml.NVMLError:
        pass
    return tuple(found)


def _reading(uuid: str, handle: object) -> Reading:
    mask = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    processes = _processes(handle)
    return Reading(
        uuid=uuid,
        sm_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        power_mw=_ask(pynvml.nvmlDeviceGetPowerUsage, handle),
        throttle=None if mask is None else reasons(int(mask)),
        processes=None if processes is None else len(processes),
    )


def _read_all() -> Inventory:
    gpus: list[Gpu] = []
    faults: list[str] = []
    for number in range(pynvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_read(number))
        except pynvml.NVMLError as error:
            faults.append(f"GPU {number} by NVML's count: {error}")
    try:
        peers = _peers([gpu.index for gpu in gpus])
    except pynvml.NVMLError as error:
        faults.append(f"links between GPUs: {error}")
        peers = dict.fromkeys((gpu.index for gpu in gpus), (None, None))
    uuids = {gpu.index: gpu.uuid for gpu in gpus}
    # The bus id has a fixed width, so that text order is bus order.
    gpus.sort(key=lambda gpu: gpu.pci_bus_id)
    split = any(gpu.mig_enabled for gpu in gpus)
    devices = tuple(
        replace(_placed(gpu, index, peers, uuids), beside_mig=split)
        for index, gpu in enumerate(gpus)
    )
    if not devices and not faults:
        faults.append("the NVIDIA driver is loaded but shows no GPU")
    return Inventory(devices=devices, reason="; ".join(faults) or None)


def _placed(gpu: Gpu, index: int, peers: _Peers, uuids: Mapping[int, str]) -> Gpu:
    """Gives a GPU its ordinal in bus order, and the GPUs it reaches by their UUIDs."""
    nvlink, p2p = (
        None if found is None else frozenset(uuids[number] for number in found)
        for found in peers[gpu.index]
    )
    instances = tuple(replace(each, index=index) for each in gpu.instances)
    return replace(gpu, index=index, instances=instances, nvlink_peers=nvlink, p2p_peers=p2p)


def _read(number: int) -> Gpu:
    """Reads the GPU at a place of NVML's own count, which is its index for the time being."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    mig = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    gpu = Gpu(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        index=number,
        name=pynvml.nvmlDeviceGetName(handle),
        pci_bus_id=_bus_id(pynvml.nvmlDeviceGetPciInfo(handle)),
        driver_version=_ask(pynvml.nvmlSystemGetDriverVersion),
        cuda_driver_version=_cuda_version(_ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)),
        mig_enabled=None if mig is None else mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
        **_usage(handle),
    )
    return replace(gpu, instances=tuple(_instances(gpu, handle))) if gpu.mig_enabled else gpu


def _instances(parent: Gpu, handle: object) -> Iterator[Gpu]:
    """Yields the MIG instances of a GPU; numbers below the most there can be may be unused."""
    for number in range(_ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                continue
            raise
        yield replace(
            parent,
            uuid=pynvml.nvmlDeviceGetUUID(instance),
            name=pynvml.nvmlDeviceGetName(instance),
            mig_enabled=None,
            parent_uuid=parent.uuid,
            **_usage(instance),
        )


def _usage(handle: object) -> dict[str, Any]:
    """Returns those fields of a `Gpu` that change while it is used."""
    total_bytes, used_bytes, reserved_bytes = _memory(handle)
    return {
        "memory_total_bytes": total_bytes,
        "memory_used_bytes": used_bytes,
        "memory_reserved_bytes": reserved_bytes,
        "processes": _processes(handle),
    }


def _peers(numbers: Sequence[int]) -> _Peers:
    """Returns, by NVML's count, whom each GPU reaches over NVLink and whom at all."""
    handles = {number: pynvml.nvmlDeviceGetHandleByIndex(number) for number in numbers}
    return {
        one: (
            _reached(handle, others := {k: v for k, v in handles.items() if k != one}, _NVLINK),
            _reached(handle, others, _READ),
        )
        for one, handle in handles.items()
    }


def _reached(handle: object, others: Mapping[int, object], how: int) -> tuple[int, ...] | None:
    answers = {
        number: _ask(pynvml.nvmlDeviceGetP2PStatus, handle, other, how)
        for number, other in others.items()
    }
    if None in answers.values():
        return None
    return tuple(n for n, answer in answers.items() if answer == pynvml.NVML_P2P_STATUS_OK)


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
