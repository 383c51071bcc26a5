"""Leases: devices that belong to one holder until it lets go or dies.

Acquiring is all-or-none behind one turnstile per kind of device: whoever passed it is the only one
that collects devices, keeps those it has while it waits for the rest, and so is served as soon as
its holders are done, however wide the request (scanning and backing off would starve it). Two
requests can never each hold what the other needs. The price is that narrower requests wait behind
it too, even for devices that it cannot use.

A process that asks for more while it holds a lease can still stand in its own way, or in that of
another which does the same; the deadline ends it. Ask for all devices of an engine in one lease.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from gpu_scheduler import host, quarantines
from gpu_scheduler.device import Device
from gpu_scheduler.errors import LeaseTimeout, Unsatisfiable
from gpu_scheduler.locks import HeldLock, LockFolder
from gpu_scheduler.owner import Owner, is_alive
from gpu_scheduler.placement import Kind, Refusal, Request, Topology, objection
from gpu_scheduler.survey import candidates, survey
from gpu_scheduler.visibility import affinity, environment_for

_POLL_FIRST_S = 0.01
_POLL_MOST_S = 0.05
"""Trying a lock costs about 10 us, so that a waiter takes less than a thousandth of a core."""
_POLL_DRIVER_S = 0.5
"""Asking the driver for its processes can take tens of milliseconds."""


class Lease:
    """Devices held until `release`, the end of a `with` block or the death of this process.

    Attributes:
        devices: What is held, in the order of the outer CUDA_VISIBLE_DEVICES or of the host.
        environment: Variables that a child needs to see exactly these devices; a child that is not
            given them sees whatever this process sees.
        affinity: Cores for `os.sched_setaffinity` in a child; `None` when GPUs are leased.
        wait_s: How long the lease was waited for.
    """

    def __init__(
        self, devices: tuple[Device, ...], locks: Sequence[HeldLock], wait_s: float
    ) -> None:
        self.devices = devices
        self.environment = environment_for(devices)
        self.affinity = affinity(devices)
        self.wait_s = wait_s
        self._locks = tuple(locks)

    def release(self) -> None:
        """Lets go of all devices; does nothing the second time, or in a forked child."""
        for lock in self._locks:
            lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def lease(
    count: int,
    *,
    kind: Kind,
    test: str,
    wait_s: float,
    min_free_bytes: int | None = None,
    topology: Topology | None = None,
) -> Lease:
    """Takes devices for one holder, all at once or none; use it in a `with` statement.

    Args:
        count: How many devices.
        kind: `cuda` for whole GPUs, `cpu` for cores of this process's affinity.
        test: Whom the lease is for, shown to those who wait for it.
        wait_s: Longest wait in seconds; 0 asks once.
        min_free_bytes: Free memory that each device must have: a GPU's own, or a core's even share
            of the host's. `None` asks for none.
        topology: `nvlink` for devices that reach each other over NVLink.

    Raises:
        Unsatisfiable: This host can never grant it.
        LeaseTimeout: The devices were not free in time; says who held each.
        LockFolderError: The lock folder cannot be used.
        VisibilityError: The outer CUDA_VISIBLE_DEVICES is ambiguous on this host.
    """
    request = Request(
        count=count, kind=kind, test=test, min_free_bytes=min_free_bytes, topology=topology
    )
    return _Acquisition(request, wait_s).run()


def _polls() -> Iterator[float]:
    """Yields how long to sleep between tries, in seconds: short at first, then steadily."""
    poll_s = _POLL_FIRST_S
    while True:
        yield poll_s
        poll_s = min(2 * poll_s, _POLL_MOST_S)


class _Acquisition:
    """One request on its way to a lease."""

    def __init__(self, request: Request, wait_s: float) -> None:
        self._request = request
        self._wait_s = wait_s
        self._started_s = time.monotonic()
        found = candidates(request)
        if isinstance(found, Unsatisfiable):
            raise found
        self._candidates = found
        self._folder = LockFolder.default()
        self._held: dict[str, HeldLock] = {}
        self._snapshots: dict[str, Device] = {}
        self._refusals: dict[str, Refusal] = {}
        self._queued = True

    def run(self) -> Lease:
        """Waits for the devices and takes them."""
        try:
            while not self._stand_at_head():
                self._pause(_POLL_DRIVER_S)
        except BaseException:
            self._let_go()
            raise
        # In the order of the candidates: a device that was waited for was taken last.
        ids = [device.id for device in self._candidates if device.id in self._held]
        devices = tuple(self._snapshots[device_id] for device_id in ids)
        return Lease(devices, tuple(self._held.values()), self._waited_s())

    def _stand_at_head(self) -> bool:
        """Collects devices as the only one who may, until there are enough.

        Returns:
            False when what is missing is in the hands of processes without a lease. Nobody
            announces their end, so that the others are let past until then.
        """
        turnstile = self._pass_turnstile()
        try:
            if self._gather():
                return True
            turnstile.sign(Owner.current(self._request.test))
            polls = _polls()
            while self._worth_draining():
                self._pause(next(polls))
                if self._gather():
                    return True
            self._let_go()
            return False
        finally:
            turnstile.release()

    def _pass_turnstile(self) -> HeldLock:
        self._queued = True
        polls = _polls()
        while (turnstile := self._folder.try_lock(self._turnstile)) is None:
            self._pause(next(polls))
        self._queued = False
        return turnstile

    def _gather(self) -> bool:
        """Takes what is free and usable, up to what is asked for; says whether that is enough."""
        self._refusals = {}
        while self._lock_free():
            self._drop_unusable()
        if len(self._held) < self._request.count:
            return False
        owner = Owner.current(self._request.test)
        for lock in self._held.values():
            lock.sign(owner)
        return True

    def _lock_free(self) -> bool:
        """Locks devices that nobody holds; says whether there was any."""
        before = len(self._held)
        for device in self._candidates:
            if len(self._held) == self._request.count:
                break
            if device.id in self._held or device.id in self._refusals:
                continue
            lock = self._folder.try_lock(device.id)
            if lock is None:
                self._refusals[device.id] = _leased(device.id, self._folder)
            else:
                self._held[device.id] = lock
        return len(self._held) > before

    def _drop_unusable(self) -> None:
        """Lets go of devices that others use without a lease, by what the driver says now."""
        devices, note = survey(self._request.kind)
        self._snapshots = {device.id: device for device in devices}
        for device_id in tuple(self._held):
            device = self._snapshots.get(device_id)
            if device is None:
                reason: str | None = f"no longer there ({note or 'the driver says no more'})"
            else:
                barred = quarantines.read(self._folder, device_id)
                reason = (
                    str(barred)
                    if barred
                    else objection(device, self._request, host.describe_process)
                )
            if reason is not None:
                self._held.pop(device_id).release()
                self._refusals[device_id] = Refusal(device_id=device_id, reason=reason)

    def _worth_draining(self) -> bool:
        """Whether the end of other leases alone could serve the request."""
        leased = sum(refusal.leased for refusal in self._refusals.values())
        return len(self._held) + leased >= self._request.count

    def _let_go(self) -> None:
        while self._held:
            self._held.popitem()[1].release()

    def _pause(self, poll_s: float) -> None:
        left_s = self._wait_s - self._waited_s()
        if left_s <= 0:
            raise self._timeout()
        time.sleep(min(poll_s, left_s))

    def _waited_s(self) -> float:
        return time.monotonic() - self._started_s

    @property
    def _turnstile(self) -> str:
        return f"turnstile-{self._request.kind}"

    def _timeout(self) -> LeaseTimeout:
        if self._queued:
            ahead = self._folder.read_record(self._turnstile)
            found = f"still queued behind {ahead or 'a request that is being served'}"
            refusals = self._recorded_leases()
        else:
            usable = len(self._candidates) - len(self._refusals)
            found = f"{usable} of {len(self._candidates)} usable at the same time"
            refusals = self._refusals
        return LeaseTimeout(
            expected=f"{self._request} within {self._wait_s:g} s",
            found=found,
            rule="a device is handed out when no lease holds it, no process computes on it and "
            "enough of its memory is free; requests are served one after the other",
            remedy="wait longer, or see to it that what stands in the way ends:",
            refusals=tuple(refusals.values()),
        )

    def _recorded_leases(self) -> dict[str, Refusal]:
        """Says who holds which device by the records alone: only the head may try the locks."""
        found = (_leased(device.id, self._folder) for device in self._candidates)
        return {
            refusal.device_id: refusal
            for refusal in found
            if refusal.holder is not None and is_alive(refusal.holder) is not False
        }


def _leased(device_id: str, folder: LockFolder) -> Refusal:
    holder = folder.read_record(device_id)
    reason = f"leased by {holder or 'somebody whose record cannot be read'}"
    return Refusal(device_id=device_id, reason=reason, leased=True, holder=holder)
