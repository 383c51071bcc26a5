"""Whether devices whose locks are held may really be handed out: what the driver says of them.

A lock only says that nobody else holds a lease. Programs that take none, and processes that have
outlived the lease under which they were started, show in the driver's list and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_scheduler import host, orphans, quarantines
from gpu_scheduler.device import Device
from gpu_scheduler.locks import HeldLock, LockFolder
from gpu_scheduler.owner import Owner, is_alive, parse
from gpu_scheduler.placement import Refusal, Request, foreign, objection, unexplained
from gpu_scheduler.survey import refresh


def examine(
    known: Mapping[str, Device], locks: Mapping[str, HeldLock], request: Request, folder: LockFolder
) -> tuple[dict[str, Device], dict[str, Refusal]]:
    """Looks at devices whose locks are held; ends what dead holders have left on them.

    Args:
        known: Earlier snapshots, by id.
        locks: Of the same devices.
        request: What is asked of them.
        folder: Where the quarantines are.

    Returns:
        New snapshots, and why some must not be handed out.
    """
    dead = {id_: owner for id_, lock in locks.items() if (owner := _dead_holder(lock)) is not None}
    found = look(known, request, folder)
    for id_, owner in dead.items():
        device = found[0].get(id_)
        if device is not None and (pids := _orphans(device, owner)):
            left = orphans.reap(owner.lease_id or "", pids)
            found = _again(found, {id_: known[id_]}, request, folder)
            if left and id_ in found[1]:
                found[1][id_] = _outlived(found[1][id_], left, owner)
    return found


def look(
    known: Mapping[str, Device], request: Request, folder: LockFolder
) -> tuple[dict[str, Device], dict[str, Refusal]]:
    """Reads devices again; returns new snapshots, and what stands in the way of some."""
    snapshots: dict[str, Device] = {}
    refusals: dict[str, Refusal] = {}
    for id_, device in refresh(tuple(known.values()), request).items():
        if isinstance(device, str):
            reason: str | None = f"no longer there: {device}"
        else:
            snapshots[id_] = device
            barred = quarantines.read(folder, id_)
            reason = str(barred) if barred else _objection(device, request)
        if reason is not None:
            refusals[id_] = Refusal(device_id=id_, reason=reason)
    return snapshots, refusals


def _objection(device: Device, request: Request) -> str | None:
    hidden = device.processes is None or not host.sees_all_pids()
    return objection(device, request, host.describe_process, pids_hidden=hidden)


def _again(
    found: tuple[dict[str, Device], dict[str, Refusal]],
    known: Mapping[str, Device],
    request: Request,
    folder: LockFolder,
) -> tuple[dict[str, Device], dict[str, Refusal]]:
    snapshots, refusals = look(known, request, folder)
    kept = {id_: refusal for id_, refusal in found[1].items() if id_ not in known}
    return found[0] | snapshots, kept | refusals


def _dead_holder(lock: HeldLock) -> Owner | None:
    """Returns who held the device before, if it died without letting go and left a lease's id."""
    data = lock.last_record()
    owner = parse(data) if data else None
    if owner is None or owner.lease_id is None or is_alive(owner) is not False:
        return None
    return owner if owner.boot_id == host.boot_id() else None


def _orphans(device: Device, owner: Owner) -> tuple[int, ...]:
    """Returns the processes of a dead holder's lease that still use a device."""
    assert owner.lease_id is not None
    if host.sees_all_pids() and device.processes is not None:
        return orphans.carriers(owner.lease_id, [each.pid for each in foreign(device)])
    # In a container the driver counts pids otherwise or hides them: memory that nobody is known to
    # hold is laid to those that carry the lease's id.
    if foreign(device) or unexplained(device) is not None:
        return orphans.carriers(owner.lease_id)
    return ()


def _outlived(refusal: Refusal, pids: tuple[int, ...], owner: Owner) -> Refusal:
    left = "; ".join(host.describe_process(pid) for pid in pids)
    reason = f"{refusal.reason}; left behind, and not to be ended, by {owner}: {left}"
    return Refusal(device_id=refusal.device_id, reason=reason)
