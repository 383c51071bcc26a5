"""Who holds which device and why, and who waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler import host, quarantines
from gpu_scheduler.device import Device, GpuProcess
from gpu_scheduler.locks import LockFolder
from gpu_scheduler.owner import Owner, is_alive
from gpu_scheduler.placement import Claim, Kind, foreign
from gpu_scheduler.quarantines import Quarantine
from gpu_scheduler.survey import survey
from gpu_scheduler.tickets import waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignProcess:
    """A process that uses a device without a lease on it."""

    process: GpuProcess
    description: str
    """Whose it is and what it runs, as far as this user may see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request in the queue that could be served by a device."""

    position: int
    """In the queue of the device's kind, from 1."""
    count: int
    """How many devices it asks for."""
    owner: Owner
    """Who asks, since when, and for which test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """One device that this process may use, as it is now."""

    device: Device
    holder: Owner | None
    """Who holds a lease on it."""
    quarantine: Quarantine | None
    foreign: tuple[ForeignProcess, ...]
    """Who computes on it while nobody holds a lease on it."""
    queue: tuple[Waiting, ...]
    """Who waits for it, first come first."""


def status(kind: Kind = "cuda") -> tuple[DeviceStatus, ...]:
    """Looks at every device that this process may use; takes and changes nothing.

    Raises:
        LockFolderError: The lock folder cannot be used.
        VisibilityError: The outer CUDA_VISIBLE_DEVICES is ambiguous on this host.
    """
    folder = LockFolder.default()
    queue = _queue(folder, kind)
    return tuple(_status(device, folder, queue) for device in survey(kind).devices)


def _queue(folder: LockFolder, kind: Kind) -> list[tuple[Waiting, Claim]]:
    """Reads the tickets without the gate: one that is just being written is left out."""
    found = [
        ticket for ticket in waiting(folder.queue, kind) if is_alive(ticket.owner) is not False
    ]
    found.sort(key=lambda ticket: ticket.number)
    return [
        (Waiting(position=position, count=ticket.wants, owner=ticket.owner), ticket.claim)
        for position, ticket in enumerate(found, 1)
    ]


def _status(device: Device, folder: LockFolder, queue: list[tuple[Waiting, Claim]]) -> DeviceStatus:
    holder = folder.read_record(device.id)
    if holder is not None and is_alive(holder) is False:
        holder = None
    processes = foreign(device) if holder is None else ()
    return DeviceStatus(
        device=device,
        holder=holder,
        quarantine=quarantines.read(folder, device.id),
        foreign=tuple(
            ForeignProcess(process=each, description=host.describe_process(each.pid))
            for each in processes
        ),
        queue=tuple(each for each, claim in queue if device.id in claim.among),
    )
