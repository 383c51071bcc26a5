"""A stand-in for the module pynvml, driven by a description of the host's GPUs.

It keeps NVML's contract where code can get it wrong: every call outside an init / shutdown pair
raises "Uninitialized", errors are pynvml's own classes, the first memory struct counts the driver's
reserve as used, and the order of enumeration is whatever the description says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 1024**3


@dataclass(kw_only=True)
class FakeGpu:
    """One GPU; change it between two inventories to play a host where things happen."""

    uuid: str
    bus: int = 0x17
    name: str = "NVIDIA H200"
    total_bytes: int = 140 * GIB
    reserved_bytes: int = GIB // 2
    used_bytes: int = 0
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    mig: bool | None = False
    error: int | None = None
    """What every call on this GPU fails with, such as NVML_ERROR_GPU_IS_LOST."""


@dataclass(kw_only=True)
class FakeNvml:
    """The module; assign an instance to `gpu_scheduler.nvml.pynvml`."""

    gpus: Sequence[FakeGpu] = ()
    init_error: int | None = None
    missing: frozenset[str] = frozenset()
    """Functions that this driver's library lacks."""
    on_init: Callable[[int], None] = lambda _count: None
    """Called with the number of sessions so far, at the start of each."""
    sessions: int = 0
    is_open: bool = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (pynvml is untyped)
        """Constants and error classes are the real ones; functions must be faked."""
        if name.startswith(("nvmlDevice", "nvmlSystem")):
            raise AttributeError(f"the fake has no {name}")
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_error is not None:
            raise pynvml.NVMLError(self.init_error)
        assert not self.is_open, "a session was left open"
        self.is_open = True
        self.sessions += 1
        self.on_init(self.sessions)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._check_open()
        self.is_open = False

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        self._check_open()
        return "570.86.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        self._check_open()
        return 12080

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._check_open()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        self._check_open()
        return self._alive(self.gpus[index])

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802
        return self._alive(gpu).uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:  # noqa: N802
        return self._alive(gpu).name

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(domain=0, bus=self._alive(gpu).bus, device=0)

    def nvmlDeviceGetMemoryInfo(  # noqa: N802
        self, gpu: FakeGpu, version: int | None = None
    ) -> SimpleNamespace:
        self._alive(gpu)
        if version is None:
            self._check_has("nvmlDeviceGetMemoryInfo")
            used_bytes = gpu.used_bytes + gpu.reserved_bytes
            return SimpleNamespace(
                total=gpu.total_bytes, used=used_bytes, free=gpu.total_bytes - used_bytes
            )
        self._check_has("nvmlDeviceGetMemoryInfo_v2")
        assert version == pynvml.nvmlMemory_v2
        return SimpleNamespace(
            total=gpu.total_bytes,
            reserved=gpu.reserved_bytes,
            used=gpu.used_bytes,
            free=gpu.total_bytes - gpu.reserved_bytes - gpu.used_bytes,
        )

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: FakeGpu) -> list[Any]:  # noqa: N802
        self._check_has("nvmlDeviceGetComputeRunningProcesses_v3")
        return self._processes(gpu)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, gpu: FakeGpu) -> list[Any]:  # noqa: N802
        self._check_has("nvmlDeviceGetComputeRunningProcesses_v2")
        return self._processes(gpu)

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:  # noqa: N802
        if self._alive(gpu).mig is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(bool(gpu.mig)), int(bool(gpu.mig))]

    def _processes(self, gpu: FakeGpu) -> list[Any]:
        self._alive(gpu)
        return [SimpleNamespace(pid=p, usedGpuMemory=used) for p, used in gpu.processes]

    def _check_open(self) -> None:
        if not self.is_open:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    def _check_has(self, function: str) -> None:
        if function in self.missing:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    def _alive(self, gpu: FakeGpu) -> FakeGpu:
        self._check_open()
        if gpu.error is not None:
            raise pynvml.NVMLError(gpu.error)
        return gpu


def host_of(count: int) -> FakeNvml:
    """A healthy host of equal GPUs, `GPU-0...`, `GPU-1...`, in PCI order."""
    return FakeNvml(
        gpus=[FakeGpu(uuid=f"GPU-{n}000-aaaa", bus=0x10 + n) for n in range(count)],
    )
