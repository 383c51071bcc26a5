"""How a request becomes a lease: all devices at once or none, first come first served.

Under the gate of its kind of device (see `tickets`) a request looks at the tickets before its own
and at the devices, and takes what it needs if those before it need not have it (`placement`). If
it cannot, it leaves a ticket and sleeps until somebody lets something go (`watch`). Nobody holds
devices while waiting for more, so that two requests can never each hold what the other needs; what
the first in the queue waits for is kept free for it by all others.

What the locks allow is then examined by what the driver says (`truth`), outside the gate: that
takes milliseconds on a real host. Devices that somebody uses without a lease are left out from
then on, and looked at again from time to time.

A process that asks for more while it holds a lease can still stand in its own way, or in that of
another which does the same; the deadline ends it. Ask for all devices of an engine in one lease.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from gpu_scheduler import tickets, truth
from gpu_scheduler.device import Device
from gpu_scheduler.errors import LeaseTimeout, Unsatisfiable
from gpu_scheduler.locks import HeldLock, LockFolder, release_all
from gpu_scheduler.owner import Owner, encode, is_alive
from gpu_scheduler.placement import (
    Claim,
    Refusal,
    Request,
    choose,
    claim,
    covers,
    reserved,
    uniform,
)
from gpu_scheduler.survey import candidates, recent, survey
from gpu_scheduler.tickets import Place, Queue, Ticket
from gpu_scheduler.watch import Watch

_GATE_PATIENCE_S = 2.0
"""A request that does not want to wait still waits for the gate, which others hold for moments."""
_GATE_FIRST_S = 0.000_05
_GATE_MOST_S = 0.000_5
_QUIET_S = 0.05
"""Records only explain. When nothing was told for so long, what they say is not believed."""
_POLL_DRIVER_S = 0.5
"""Asking the driver for its processes can take tens of milliseconds."""
_TELL_S = 1.0
"""How often somebody who waits is told anew, if what is to be told has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """What a request waits for."""

    request: Request
    waited_s: float
    position: int
    """In the queue, from 1."""
    refusals: tuple[Refusal, ...]
    """Per device that it could use, who or what stands in the way."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What an acquisition ends with; the locks are the caller's to release."""

    devices: tuple[Device, ...]
    locks: tuple[HeldLock, ...]
    wait_s: float


class Acquisition:
    """One request on its way to a lease.

    Args:
        request: What is asked.
        lease_id: Of the lease to be.
        wait_s: Longest wait in seconds.
        on_wait: Told what is waited for, first at once and then when it changes.
    """

    def __init__(
        self,
        request: Request,
        *,
        lease_id: str,
        wait_s: float,
        on_wait: Callable[[Blocked], None] | None = None,
    ) -> None:
        self._started_s = time.monotonic()
        self._request = request
        self._lease_id = lease_id
        self._wait_s = wait_s
        self._on_wait = on_wait
        self._folder = LockFolder.default()
        self._able = self._candidates()
        self._uniform = uniform(tuple(self._able.values()))
        self._refused: dict[str, Refusal] = {}
        """Devices in whose way more than a lease stands, by what the driver said last."""
        self._looked_s = self._started_s
        self._place: Place | None = None
        self._ahead: list[Ticket] = []
        self._leased: frozenset[str] = frozenset()
        self._kept: frozenset[str] = frozenset()
        """Devices that were free and kept for those ahead."""
        self._records_count = False
        """Whether to believe the records of holders, instead of trying their locks."""
        self._behind: Ticket | None = None
        """One ahead that keeps all that this request could use: it must go first."""
        self._told: tuple[float, object] | None = None

    def run(self) -> Grant:
        """Waits for the devices and takes them.

        Raises:
            Unsatisfiable: This host can never grant it.
            LeaseTimeout: The devices were not free in time.
        """
        with ExitStack() as ends:
            ends.callback(self._leave)
            watch: Watch | None = None
            while True:
                if not self._in_vain() and (locks := self._collect()) is not None:
                    grant = self._examined(locks)
                    if grant is not None:
                        return grant
                elif self._left_s() <= 0:
                    raise self._timeout()
                else:
                    watch = watch or ends.enter_context(Watch())
                    self._sleep(watch)

    def _must_wait(self) -> bool:
        """Whether the one before whom nothing can be had still stands in the queue."""
        if self._behind is not None:
            self._behind = tickets.stands(self._folder.queue, self._request.kind, self._behind)
        return self._behind is not None and covers(self._behind.claim, self._ids())

    def _in_vain(self) -> bool:
        """Whether it is certain, without the gate, that there is nothing to be had yet."""
        return self._must_wait() or (self._records_count and self._surely_leased())

    def _surely_leased(self) -> bool:
        """Whether too many devices bear the record of a holder that lives."""
        missing, spare = self._request.count, len(self._usable()) - self._request.count
        for id_ in self._ids():
            holder = self._folder.read_record(id_)
            if holder is not None and is_alive(holder):
                spare -= 1
            else:
                missing -= 1
            if spare < 0 or missing <= 0:
                break
        return spare < 0

    # --- under the gate ------------------------------------------------------------------------

    def _collect(self) -> dict[str, HeldLock] | None:
        """Takes devices if there are enough for this request; else sees to its ticket."""
        with self._gate() as gate:
            queue = Queue(self._folder.queue, self._request.kind, gate)
            locks = self._take(queue)
            if locks is None and self._left_s() > 0:
                self._queue(queue)
            elif locks is not None and self._place is not None:
                # While the driver is asked others may go ahead with what it has not taken.
                self._place.grant(locks)
            return locks

    @contextmanager
    def _gate(self) -> Iterator[HeldLock]:
        name = tickets.gate_name(self._request.kind)
        sleep_s = _GATE_FIRST_S
        while (gate := self._folder.queue.try_lock(name)) is None:
            if self._left_s() <= 0 and self._waited_s() > self._wait_s + _GATE_PATIENCE_S:
                raise self._gate_timeout(name)
            time.sleep(sleep_s)
            sleep_s = min(2 * sleep_s, _GATE_MOST_S)
        try:
            yield gate
        finally:
            gate.release()

    def _take(self, queue: Queue) -> dict[str, HeldLock] | None:
        self._ahead = queue.ahead(self._place)
        self._leased = self._kept = frozenset()
        usable = self._usable()
        self._behind = self._last_before(usable)
        if self._must_wait():
            return None
        chosen = self._choose(usable)
        if chosen is None and self._kept and queue.bury():
            self._ahead = queue.ahead(self._place)
            chosen = self._choose(usable)
        return chosen

    def _last_before(self, usable: Sequence[Device]) -> Ticket | None:
        """Returns the ticket ahead that must go first, `None` when this request can go with all.

        Those after it fit on the devices beside this request, so that all of them are woken when it
        goes, and none has to wait for another to be woken.
        """
        ids = [device.id for device in usable]
        room = len(usable) - self._request.count
        for ticket in reversed(self._ahead):
            room -= ticket.claim.count
            if room < 0 and covers(ticket.claim, ids):
                return ticket
        return None

    def _choose(self, usable: Sequence[Device]) -> dict[str, HeldLock] | None:
        """Looks at devices, by trying their locks, and keeps those that this request may have."""
        claims = [ticket.claim for ticket in self._ahead]
        locks = self._lock_what_matters([device.id for device in usable], claims)
        try:
            self._kept = reserved(claims, locks)
            free = [d for d in usable if d.id in locks and d.id not in self._kept]
            chosen = choose(free, self._request)
            return {d.id: locks.pop(d.id) for d in chosen} if chosen is not None else None
        finally:
            release_all(locks.values())

    def _lock_what_matters(
        self, ids: Sequence[str], claims: Sequence[Claim]
    ) -> dict[str, HeldLock]:
        """Locks what is free, until it is certain that there is enough, or too little."""
        spare: float = len(ids) - self._request.count
        enough = self._request.count + sum(each.count for each in claims)
        if not self._uniform:
            # Which set is best depends on all that is free.
            spare, enough = math.inf, sys.maxsize
        locks: dict[str, HeldLock] = {}
        leased: set[str] = set()
        try:
            for id_ in dict.fromkeys((*ids, *(id_ for each in claims for id_ in each.among))):
                lock = self._folder.try_lock(id_)
                if lock is not None:
                    locks[id_] = lock
                else:
                    leased.add(id_)
                if len(locks) >= enough or len(leased & set(ids)) > spare:
                    break
        except BaseException:
            release_all(locks.values())
            raise
        self._leased = frozenset(leased)
        return locks

    def _queue(self, queue: Queue) -> None:
        usable = self._usable()
        free = [device.id for device in usable if device.id not in self._leased]
        before = self._place.ticket.claim if self._place is not None else None
        wanted = claim(usable, free, self._request, before)
        if self._place is not None:
            self._place.claim(wanted)
        else:
            self._place = queue.join(
                self._request.count,
                wanted,
                self._started_s + self._wait_s,
                Owner.current(self._request.test, self._lease_id),
            )

    # --- by what the driver says ---------------------------------------------------------------

    def _candidates(self) -> dict[str, Device]:
        found = candidates(self._request, recent(self._request.kind))
        if isinstance(found, Unsatisfiable):
            # What was true a moment ago is not good enough to refuse for good.
            found = candidates(self._request, survey(self._request.kind))
        if isinstance(found, Unsatisfiable):
            raise found
        return {device.id: device for device in found}

    def _examined(self, locks: dict[str, HeldLock]) -> Grant | None:
        """Makes a grant of what is locked, unless something stands in the way of some of it."""
        with ExitStack() as undo:
            undo.callback(release_all, locks.values())
            known = {id_: self._able[id_] for id_ in locks}
            snapshots, refused = truth.examine(known, locks, self._request, self._folder)
            self._refused |= refused
            if refused:
                # What it claims, it must now claim anew.
                self._records_count = False
                return None
            undo.pop_all()
        record = encode(Owner.current(self._request.test, self._lease_id))
        for lock in locks.values():
            lock.sign(record)
        place, self._place = self._place, None
        kept = place.hand_over() if place is not None else ()
        return Grant(
            tuple(snapshots[id_] for id_ in locks), (*locks.values(), *kept), self._waited_s()
        )

    def _look_again(self) -> None:
        """Asks the driver for what has changed about the devices that are left out."""
        self._looked_s = time.monotonic()
        known = {id_: self._able[id_] for id_ in self._refused}
        _, self._refused = truth.look(known, self._request, self._folder)

    def _ids(self) -> list[str]:
        return [device.id for device in self._usable()]

    def _usable(self) -> list[Device]:
        return [device for id_, device in self._able.items() if id_ not in self._refused]

    # --- waiting -------------------------------------------------------------------------------

    def _sleep(self, watch: Watch) -> None:
        """Sleeps until the one before goes, or, as one who can be served, until a device does."""
        if self._behind is not None:
            name = tickets.slot_name(self._request.kind, self._behind.slot)
            paths = [self._folder.queue.file(name, "owner")]
        else:
            paths = [str(self._folder.path)]
            if self._kept:
                paths.append(str(self._folder.queue.path))
        self._records_count = True
        if watch.turn_to(paths):
            # What has happened until now is looked at once more.
            return
        self._tell()
        most_s = self._left_s()
        if self._refused:
            most_s = min(most_s, self._looked_s + _POLL_DRIVER_S - time.monotonic())
        quiet_s = watch.wait(max(0.0, most_s), far=self._behind is not None)
        self._records_count = quiet_s < _QUIET_S and self._left_s() > 0
        if self._refused and time.monotonic() - self._looked_s >= _POLL_DRIVER_S:
            self._look_again()
            self._records_count = False

    def _tell(self) -> None:
        if self._on_wait is None:
            return
        now_s = time.monotonic()
        if self._told is not None and now_s - self._told[0] < _TELL_S:
            return
        blocked = self._blocked()
        gist = blocked.position, [refusal.gist for refusal in blocked.refusals]
        if self._told is None or self._told[1] != gist:
            self._on_wait(blocked)
        self._told = now_s, gist

    def _blocked(self) -> Blocked:
        return Blocked(
            request=self._request,
            waited_s=self._waited_s(),
            position=len(self._waiting_ahead()) + 1,
            refusals=tuple(filter(None, map(self._refusal, self._able))),
        )

    def _refusal(self, id_: str) -> Refusal | None:
        if id_ in self._refused:
            return self._refused[id_]
        refusal = leased(id_, self._folder)
        if id_ in self._leased or refusal.holder is not None:
            return refusal
        first = next((each for each in self._waiting_ahead() if id_ in each.claim.among), None)
        if first is None:
            return None
        reason = f"free, but kept for {first.wants} device(s) of {first.owner}"
        return Refusal(device_id=id_, reason=reason, holder=first.owner)

    def _waiting_ahead(self) -> list[Ticket]:
        """Of those that were ahead under the gate the last time, who still waits now."""
        folder, kind = self._folder.queue, self._request.kind
        found = (tickets.read(folder, kind, ticket.slot) for ticket in self._ahead)
        numbers = {ticket.number for ticket in self._ahead}
        return [each for each in found if each and each.number in numbers and not each.granted]

    def _leave(self) -> None:
        if self._place is not None:
            self._place.leave()
            self._place = None

    def _waited_s(self) -> float:
        return time.monotonic() - self._started_s

    def _left_s(self) -> float:
        return self._wait_s - self._waited_s()

    def _timeout(self) -> LeaseTimeout:
        blocked = self._blocked()
        usable = len(self._able) - len(blocked.refusals)
        found = f"{usable} of {len(self._able)} usable at the same time"
        if ahead := self._waiting_ahead():
            found += f", at position {blocked.position} in the queue behind {ahead[0].owner}"
        return LeaseTimeout(
            expected=f"{self._request} within {self._wait_s:g} s",
            found=found,
            rule="a device is handed out when no lease holds it, no process computes on it, enough "
            "of its memory is free, it is not in quarantine, and nobody waits for it longer",
            remedy="wait longer, or see to it that what stands in the way ends:",
            refusals=blocked.refusals,
        )

    def _gate_timeout(self, name: str) -> LeaseTimeout:
        path = self._folder.queue.file(name, "lock")
        return LeaseTimeout(
            expected=f"{self._request} within {self._wait_s:g} s",
            found=f"{path} stayed locked for {self._waited_s():.1f} s",
            rule="whoever takes devices locks this file for less than a millisecond",
            remedy="look in /proc/locks for who holds it: that process is stopped or stuck",
        )


def leased(device_id: str, folder: LockFolder) -> Refusal:
    """Says by whose lease a device is held."""
    holder = folder.read_record(device_id)
    reason = f"leased by {holder or 'somebody whose record cannot be read'}"
    return Refusal(device_id=device_id, reason=reason, leased=True, holder=holder)
