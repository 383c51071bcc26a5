"""Snapshots of what can be leased: GPUs and, where there are none, CPU cores.

A snapshot is frozen: it says what was true when it was read. Unknown is `None`, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process with a compute context on a GPU."""

    pid: int
    """As the driver counts it: in a container this may be the host's number."""
    used_bytes: int | None
    """Device memory it holds; `None` where the driver does not say (in containers, under WSL)."""


class Device(Protocol):
    """One thing that a lease can hold."""

    @property
    def id(self) -> str:
        """Identity on this host, the same for every user and process."""
        ...

    @property
    def memory_capacity_bytes(self) -> int | None:
        """The most memory that a lease of this device alone could ever have free."""
        ...

    @property
    def memory_free_bytes(self) -> int | None:
        """Memory that was free when the snapshot was taken."""
        ...

    @property
    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Who computes on it, whether they hold a lease or not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU as NVML reported it. Its identity is the UUID; indices move."""

    uuid: str
    """As NVML writes it: `GPU-` and the UUID."""
    index: int
    """Ordinal under CUDA_DEVICE_ORDER=PCI_BUS_ID with no CUDA_VISIBLE_DEVICES."""
    name: str
    pci_bus_id: str
    """`domain:bus:device.function` in hexadecimal, as nvidia-smi writes it."""
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    """Held by processes; without the driver's reserve unless `memory_reserved_bytes` is `None`."""
    memory_reserved_bytes: int | None
    """Kept by driver and firmware; `None` with drivers that count it as used (before 510)."""
    driver_version: str | None
    cuda_driver_version: str | None
    """The newest CUDA this driver supports, such as `12.8`."""
    processes: tuple[GpuProcess, ...] | None
    mig_enabled: bool | None
    """True when the GPU is split into MIG instances; `None` where it cannot be."""
    instances: tuple[Gpu, ...] = ()
    """Its MIG instances, each with the index and bus id of this GPU and a UUID of its own."""
    parent_uuid: str | None = None
    """The GPU that this MIG instance is a part of; `None` for a whole GPU."""
    nvlink_peers: frozenset[str] | None = None
    """UUIDs of the GPUs that it reaches over NVLink, by a switch or directly; `None`: unknown."""
    p2p_peers: frozenset[str] | None = None
    """UUIDs of the GPUs whose memory it can read, whatever the way; `None`: unknown."""
    beside_mig: bool = False
    """True when a GPU of this host is split: what ordinals then mean is not documented."""

    @property
    def id(self) -> str:
        """The UUID."""
        return self.uuid

    @property
    def cuda_name(self) -> str:
        """What names it in CUDA_VISIBLE_DEVICES under CUDA_DEVICE_ORDER=PCI_BUS_ID.

        The ordinal where it is certain: several versions of vLLM call `int()` on the entries, or
        look shortened UUIDs up in NVML, which knows only whole ones.
        """
        return self.uuid if self.parent_uuid or self.beside_mig else str(self.index)

    @property
    def memory_capacity_bytes(self) -> int | None:
        """All memory less the driver's reserve."""
        if self.memory_total_bytes is None:
            return None
        return self.memory_total_bytes - (self.memory_reserved_bytes or 0)

    @property
    def memory_free_bytes(self) -> int | None:
        """What a new process could allocate."""
        capacity = self.memory_capacity_bytes
        if capacity is None or self.memory_used_bytes is None:
            return None
        return capacity - self.memory_used_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSlot:
    """One logical core that this process may run on, leased as if it were a device."""

    core: int
    """The kernel's number of the core, as in `os.sched_getaffinity`."""
    boot_id: str
    """The kernel's random id of this boot, which tells hosts apart."""
    memory_capacity_bytes: int | None
    """This slot's even share of the host's memory."""
    memory_free_bytes: int | None
    """This slot's even share of the memory that the host can still give."""

    @property
    def id(self) -> str:
        """`cpu:<first eight digits of the boot id>:<core>`."""
        return f"cpu:{self.boot_id[:8]}:{self.core}"

    @property
    def processes(self) -> tuple[GpuProcess, ...]:
        """Always empty: cores are shared with whatever else the kernel runs."""
        return ()
