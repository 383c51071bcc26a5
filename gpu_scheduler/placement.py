"""Policy, pure: which devices could ever serve a request, and what stands in the way now.

Nothing here locks, waits or asks the driver: it turns snapshots into choices and reasons.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb
from typing import Literal

import msgspec

from gpu_scheduler.device import Device, Gpu, GpuProcess
from gpu_scheduler.owner import Owner

Kind = Literal["cpu", "cuda"]
Topology = Literal["nvlink"]
"""What a request may demand of the links between its devices."""
_GIB = 1024**3
_IDLE_BYTES = _GIB
"""An idle GPU shows less than this as used: a display, the persistence daemon, MPS."""
_MOST_SETS = 300
"""Sets are compared one by one up to this many (8 GPUs have at most 70), then grown greedily."""


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
        floor = "" if memory is None else f" with {gib(memory)} free each"
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

    @property
    def gist(self) -> tuple[str, object]:
        """What stands in the way, without its age."""
        who = (self.holder.pid, self.holder.since_unix_s) if self.holder else self.reason
        return self.device_id, who

    def __str__(self) -> str:
        return f"{self.device_id}: {self.reason}"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a request in the queue would take: any `count` of the devices `among`."""

    count: int
    among: tuple[str, ...]
    """Ids of devices that it could use; what stands in the way of them is at most a lease."""


def capable(devices: Sequence[Device], request: Request) -> tuple[Device, ...]:
    """Returns the devices that could serve the request if nobody else used them, in order.

    CUDA shows a process one MIG instance at most, so that they only serve requests for one device.
    """
    floor = request.min_free_bytes or 0
    return tuple(
        device
        for device in devices
        if (device.memory_capacity_bytes is None or device.memory_capacity_bytes >= floor)
        and (request.count == 1 or not _is_instance(device))
    )


def choose(free: Sequence[Device], request: Request) -> tuple[Device, ...] | None:
    """Picks devices for a request: linked to each other, and as few links to others as can be.

    Args:
        free: Capable devices that may be taken, in order of preference.
        request: What is asked.

    Returns:
        Exactly as many as asked, in the given order; `None` when there are too few, or when linked
        ones are demanded and there are none.
    """
    if len(free) < request.count:
        return None
    links = _links(free)
    if _uniform(links):
        best: tuple[Device, ...] | None = tuple(free[: request.count])
    else:
        sets = _sets(free, links, request.count)
        best = min(sets, key=lambda each: _harm(each, links), default=None)
    if best is not None and _demands_links(request) and not _is_linked(best, links):
        return None
    return best


def claim(
    usable: Sequence[Device], free: Collection[str], request: Request, before: Claim | None
) -> Claim:
    """Says what a request that must wait would take.

    One that demands links waits for one set, the one of which most is free already, and stays with
    it: others may then use the rest without delaying it.

    Args:
        usable: Capable devices in whose way at most a lease stands.
        free: Ids of those that are free.
        request: What is asked.
        before: What it claimed last time.
    """
    ids = tuple(device.id for device in usable)
    if not _demands_links(request) or len(usable) < request.count:
        return Claim(count=request.count, among=ids)
    if before is not None and len(before.among) == request.count and set(before.among) <= set(ids):
        return before
    links = _links(usable)
    linked = [each for each in _sets(usable, links, request.count) if _is_linked(each, links)]
    best = max(linked, key=lambda each: sum(device.id in free for device in each), default=())
    return Claim(count=request.count, among=tuple(device.id for device in best))


def covers(earlier: Claim, ids: Collection[str]) -> bool:
    """Says whether a claim that could not be served yet keeps all of these devices.

    As long as it waits, fewer are free than it needs: `reserved` then leaves a later request none.
    """
    return 0 < earlier.count <= len(earlier.among) and set(ids) <= set(earlier.among)


def reserved(claims: Iterable[Claim], free: Collection[str]) -> frozenset[str]:
    """Returns the free devices that a request behind these claims must leave alone.

    Each claim, first come first, keeps the free devices that it could use, up to its count: so it
    is served as soon as if nobody came after it. One that the end of leases alone cannot serve,
    because somebody without a lease is in its way, keeps nothing until that has changed.
    """
    kept: set[str] = set()
    for each in claims:
        if len(each.among) >= each.count:
            ready = (id_ for id_ in each.among if id_ in free and id_ not in kept)
            kept.update(islice(ready, each.count))
    return frozenset(kept)


def _demands_links(request: Request) -> bool:
    return request.topology is not None and request.kind == "cuda" and request.count > 1


def whole_gpus(devices: Sequence[Device]) -> list[Gpu]:
    """Returns the GPUs and MIG instances among devices."""
    return [device for device in devices if isinstance(device, Gpu)]


def _is_instance(device: Device) -> bool:
    return isinstance(device, Gpu) and device.parent_uuid is not None


_Links = dict[str, frozenset[str]]
"""By id of a device: which of the others it reaches over NVLink."""


def _links(devices: Sequence[Device]) -> _Links:
    ids = frozenset(device.id for device in devices)
    peers = {
        device.id: device.nvlink_peers if isinstance(device, Gpu) else None for device in devices
    }
    return {id_: (found or frozenset()) & ids for id_, found in peers.items()}


def uniform(devices: Sequence[Device]) -> bool:
    """Says whether one set of these is as good as another: all linked to all, or none to any."""
    return _uniform(_links(devices))


def _uniform(links: _Links) -> bool:
    degrees = {len(found) for found in links.values()}
    return degrees <= {0} or degrees == {len(links) - 1}


def _sets(devices: Sequence[Device], links: _Links, count: int) -> Iterator[tuple[Device, ...]]:
    """Yields the sets of so many devices; of very many, one grown from each device."""
    if comb(len(devices), count) <= _MOST_SETS:
        yield from combinations(devices, count)
        return
    for first in devices:
        chosen = [first]
        rest = [device for device in devices if device is not first]
        while len(chosen) < count:
            ids = {device.id for device in chosen}
            best = max(rest, key=lambda device: len(links[device.id] & ids))
            rest.remove(best)
            chosen.append(best)
        yield tuple(device for device in devices if device in chosen)


def _harm(devices: Sequence[Device], links: _Links) -> tuple[int, int]:
    """Counts links that are missing within a set, and links to others that taking it would cut."""
    ids = frozenset(device.id for device in devices)
    within = sum(len(links[id_] & ids) for id_ in ids)
    cut = sum(len(links[id_] - ids) for id_ in ids)
    return len(ids) * (len(ids) - 1) - within, cut


def _is_linked(devices: Sequence[Device], links: _Links) -> bool:
    return len(devices) > 1 and _harm(devices, links)[0] == 0


def objection(
    device: Device, request: Request, describe: Callable[[int], str], *, pids_hidden: bool = False
) -> str | None:
    """Says why a device whose lock is held must still not be handed out.

    Args:
        device: A snapshot taken after its lock was taken; before, it would prove nothing.
        request: What is asked of it.
        describe: Says whose process a pid is.
        pids_hidden: True when the driver may leave processes out of its list, as in containers;
            memory that nobody is known to hold then counts as somebody's.

    Returns:
        The reason, with the pids that stand in the way; `None` when there is none.
    """
    users = "; ".join(describe(each.pid) + _holding(each.used_bytes) for each in foreign(device))
    if users:
        return f"in use without a lease by {users}"
    if pids_hidden and (size_bytes := unexplained(device)) is not None:
        return f"{gib(size_bytes)} of it in use by processes that the driver does not name"
    free, floor = device.memory_free_bytes, request.min_free_bytes
    if floor is None or (free is not None and free >= floor):
        return None
    return f"{'an unknown amount' if free is None else gib(free)} free of the {gib(floor)} asked"


def foreign(device: Device) -> tuple[GpuProcess, ...]:
    """Returns the processes on a device but this one, which may look at what it holds."""
    return tuple(each for each in device.processes or () if each.pid != os.getpid())


def unexplained(device: Device) -> int | None:
    """Returns the bytes in use on a GPU on which no process shows, if more than an idle one's.

    Before the second memory struct the driver's reserve counted as used, about half a GiB that
    differs by GPU: nothing is concluded from that.
    """
    if not isinstance(device, Gpu) or device.processes or device.memory_reserved_bytes is None:
        return None
    used = device.memory_used_bytes
    return used if used is not None and used > _IDLE_BYTES else None


def _holding(used_bytes: int | None) -> str:
    return "" if used_bytes is None else f" holding {gib(used_bytes)}"


def gib(size_bytes: int) -> str:
    """Writes a size for people."""
    return f"{size_bytes / _GIB:.1f} GiB"
