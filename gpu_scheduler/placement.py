"""Policy, pure: which devices could ever serve a request, and what stands in the way now.

Nothing here locks, waits or asks the driver: it turns snapshots into choices and reasons.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpu_scheduler.device import Device
from gpu_scheduler.owner import Owner

Kind = Literal["cpu", "cuda"]
Topology = Literal["nvlink"]
"""What a request may demand of the links between its devices."""
_GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a lease is asked for."""

    count: int
    kind: Kind
    test: str
    """Whom the lease is for: a test's id, or whatever helps those who wait for it."""
    min_free_bytes: int | None = None
    """Free memory that each device must have; `None` asks for none."""
    topology: Topology | None = None
    """`nvlink`: each device must reach each other one over NVLink; `None` only prefers that."""

    def __str__(self) -> str:
        memory = self.min_free_bytes
        floor = "" if memory is None else f" with {_gib(memory)} free each"
        return f"{self.count} {self.kind} device(s){floor} for {self.test}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why one device was not handed out."""

    device_id: str
    reason: str
    leased: bool = False
    """True when another lease holds it; else the driver reports what stands in the way."""
    holder: Owner | None = None
    """Who held its lease, when that was the reason and the holder's record could be read."""

    def __str__(self) -> str:
        return f"{self.device_id}: {self.reason}"


def capable(devices: Sequence[Device], request: Request) -> tuple[Device, ...]:
    """Returns the devices that could serve the request if nobody else used them, in order."""
    floor = request.min_free_bytes or 0
    return tuple(
        device
        for device in devices
        if device.memory_capacity_bytes is None or device.memory_capacity_bytes >= floor
    )


def objection(device: Device, request: Request, describe: Callable[[int], str]) -> str | None:
    """Says why a device whose lock is held must still not be handed out.

    Args:
        device: A snapshot taken after its lock was taken; before, it would prove nothing.
        request: What is asked of it.
        describe: Says whose process a pid is.

    Returns:
        The reason, with the pids that stand in the way; `None` when there is none.
    """
    foreign = [each for each in device.processes or () if each.pid != os.getpid()]
    if foreign:
        users = "; ".join(describe(each.pid) + _holding(each.used_bytes) for each in foreign)
        return f"in use without a lease by {users}"
    free, floor = device.memory_free_bytes, request.min_free_bytes
    if floor is None or (free is not None and free >= floor):
        return None
    return f"{'an unknown amount' if free is None else _gib(free)} free of the {_gib(floor)} asked"


def _holding(used_bytes: int | None) -> str:
    return "" if used_bytes is None else f" holding {_gib(used_bytes)}"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB"
