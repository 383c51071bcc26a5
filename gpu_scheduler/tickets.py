"""The queue of one kind of device: who waits, since when, and what each would need.

There is a gate per kind, a lock that is held for well under a millisecond at a time: whoever holds
it is the only one that takes devices or changes the queue, so that it can look at all devices and
all tickets and decide. A ticket is a lock too, with a record beside it, so that the ticket of a
killed waiter is void at once. Nothing is deleted: in a sticky folder nobody could delete another
user's ticket. Places are used again instead.

A request that is granted all that it could use keeps its ticket as long as its lease: whoever could
use nothing else sleeps until that ticket goes, where its grant would wake him in vain.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection, Iterator

import msgspec
from msgspec.structs import replace

from gpu_scheduler.locks import HeldLock, LockFolder
from gpu_scheduler.owner import Owner, cut
from gpu_scheduler.placement import Claim

_GRACE_S = 5.0
"""After its deadline a waiter that still stands in the queue must be stopped or stuck."""
_MOST_SLOTS = 4096
"""The gate's file can be written by anyone; what it says must not keep a reader busy for ever."""


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """One request in the queue."""

    slot: int
    number: int
    """Lower came earlier."""
    wants: int
    """How many devices it asks for."""
    claim: Claim
    """What it would take now; nothing while what it was given is examined."""
    deadline_s: float | None
    """On the host's monotonic clock; `None` for none."""
    owner: Owner
    granted: bool = False
    """Whether it holds all that it claims; it then waits no more."""


_DECODER = msgspec.json.Decoder(Ticket)


class Place:
    """This process's place in the queue, held until `leave` or its death."""

    def __init__(self, lock: HeldLock, ticket: Ticket) -> None:
        self.ticket = ticket
        self._deadline_s = ticket.deadline_s
        self._lock = lock
        self._write()

    def claim(self, claim: Claim) -> None:
        """Says anew what it would take, and that it waits; only under the gate."""
        if claim != self.ticket.claim or self.ticket.granted:
            self.ticket = replace(
                self.ticket, claim=claim, granted=False, deadline_s=self._deadline_s
            )
            self._write()

    def grant(self, ids: Collection[str]) -> None:
        """Says that it holds these devices; only under the gate.

        If they are all that it claimed, those behind it are to sleep on. Otherwise it claims
        nothing any more, so that they may have the rest.
        """
        if set(ids) >= set(self.ticket.claim.among):
            held = Claim(count=len(ids), among=tuple(ids))
            self.ticket = replace(self.ticket, claim=held, granted=True, deadline_s=None)
            self._write()
        else:
            self.claim(Claim(count=0, among=()))

    def hand_over(self) -> tuple[HeldLock, ...]:
        """Gives the place up, or returns what is to be released with the devices that it holds."""
        if self.ticket.granted:
            return (self._lock,)
        self.leave()
        return ()

    def leave(self) -> None:
        """Gives the place up, which wakes those behind it."""
        self._lock.release()

    def _write(self) -> None:
        self._lock.sign(msgspec.json.encode(self.ticket))


class Queue:
    """The queue as whoever holds the gate sees it; `gate` is held as long as this is used."""

    def __init__(self, folder: LockFolder, kind: str, gate: HeldLock) -> None:
        self._folder = folder
        self._kind = kind
        self._gate = gate
        self._slots = self._read_slots()
        self._known: list[Ticket] | None = None

    def ahead(self, place: Place | None) -> list[Ticket]:
        """Returns the tickets before a place, or all of them; some may be of the dead."""
        tickets = self._tickets()
        if self._slots and not tickets:
            self._note(0)
        return sorted(
            (
                ticket
                for ticket in tickets
                if not _is_overdue(ticket)
                and (place is None or ticket.number < place.ticket.number)
            ),
            key=lambda ticket: ticket.number,
        )

    def join(self, wants: int, claim: Claim, deadline_s: float, owner: Owner) -> Place:
        """Takes a place behind all others."""
        number = 1 + max((ticket.number for ticket in self._tickets()), default=0)
        # Who died while it claimed nothing is buried by nobody: its slot is tried like a free one.
        taken = {ticket.slot for ticket in self._tickets() if ticket.claim.count}
        slot, lock = next(
            (slot, lock)
            for slot in itertools.count()
            if slot not in taken
            and (lock := self._folder.try_lock(slot_name(self._kind, slot))) is not None
        )
        if slot >= self._slots:
            # Before the ticket is written: too many slots are no harm, too few would hide it.
            self._note(slot + 1)
        return Place(
            lock,
            Ticket(
                slot=slot,
                number=number,
                wants=wants,
                claim=claim,
                # JSON has no infinity.
                deadline_s=deadline_s if math.isfinite(deadline_s) else None,
                owner=cut(owner),
            ),
        )

    def bury(self) -> bool:
        """Takes the tickets of the dead out of the queue; says whether there were any."""
        found = False
        for ticket in self._tickets():
            lock = self._folder.try_lock(slot_name(self._kind, ticket.slot))
            if lock is not None:
                lock.sign(b"")
                lock.release()
                found = True
        if found:
            self._known = None
            self._note(1 + max((ticket.slot for ticket in self._tickets()), default=-1))
        return found

    def _tickets(self) -> list[Ticket]:
        """Reads all tickets, once: nobody else changes them while the gate is held."""
        if self._known is None:
            found = (read(self._folder, self._kind, slot) for slot in range(self._slots))
            self._known = [ticket for ticket in found if ticket is not None]
        return self._known

    def _read_slots(self) -> int:
        note = self._gate.read_note()
        try:
            return min(max(0, int(note)), _MOST_SLOTS)
        except ValueError:
            # A cleaner took the gate's file away, or nobody has queued yet.
            slots = 0
            while self._folder.exists(slot_name(self._kind, slots), "owner"):
                slots += 1
            self._note(slots)
            return slots

    def _note(self, slots: int) -> None:
        self._slots = slots
        self._gate.write_note(b"%d" % slots)


def _is_overdue(ticket: Ticket) -> bool:
    return ticket.deadline_s is not None and time.monotonic() >= ticket.deadline_s + _GRACE_S


def slot_name(kind: str, slot: int) -> str:
    """Returns the name of the lock of a place in the queue of a kind of device."""
    return f"ticket-{kind}-{slot}"


def gate_name(kind: str) -> str:
    """Returns the name of the lock that guards the queue and the devices of a kind."""
    return f"gate-{kind}"


def waiting(folder: LockFolder, kind: str) -> Iterator[Ticket]:
    """Yields who waits, in no order, without the gate: what is being written is left out."""
    slot = 0
    while slot < _MOST_SLOTS and folder.exists(slot_name(kind, slot), "owner"):
        ticket = read(folder, kind, slot)
        if ticket is not None and not ticket.granted:
            yield ticket
        slot += 1


def read(folder: LockFolder, kind: str, slot: int) -> Ticket | None:
    """Returns the ticket in a place; `None` when it is empty, or not readable as a ticket."""
    data = folder.read_file(slot_name(kind, slot), "owner")
    try:
        ticket = _DECODER.decode(data) if data else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return ticket if ticket is not None and ticket.slot == slot else None


def stands(folder: LockFolder, kind: str, ticket: Ticket) -> Ticket | None:
    """Returns a ticket as it is now; `None` when its owner has left, died or missed its deadline.

    The lock is tried, which needs no gate: should somebody else find it locked by that, he takes a
    dead ticket for a living one until he looks again.
    """
    now = read(folder, kind, ticket.slot)
    if now is None or now.number != ticket.number or _is_overdue(now):
        return None
    lock = folder.try_lock(slot_name(kind, ticket.slot))
    if lock is None:
        return now
    lock.release()
    return None
