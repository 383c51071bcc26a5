"""Reads the rings in which the workers of an engine keep their last collectives.

A ring is a file that its worker has mapped: what it wrote can be read whatever became of it since.
The other end of the format is `tprig_inject.ring`; a test holds the two together.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = 0x31474E4952504954
HEAD = struct.Struct("<6Q")
HEAD_BYTES = 16 * 8
SLOT = struct.Struct("<4Q")
CAPACITY_MOST = 1 << 20
KEPT = 4096
"""Calls that are read: the last ones, far more than one step issues between two spills."""


@dataclass(frozen=True)
class Head:
    """How far a worker has come."""

    entered: int
    left: int
    step: int | None

    @property
    def inside(self) -> bool:
        """True when it is in a collective."""
        return self.entered > self.left


@dataclass(frozen=True)
class Snapshot:
    """A ring at one moment."""

    head: Head
    first: int
    """Sequence number of the first call."""
    operations: tuple[int, ...]
    enter_ns: tuple[int, ...]
    leave_ns: tuple[int | None, ...]


def read_head(path: Path) -> Head | None:
    """How far the worker of this ring has come; None where there is no ring."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return _head(file.read(HEAD.size))
    return None


def _head(data: bytes) -> Head | None:
    if len(data) < HEAD.size:
        return None
    magic, _, entered, left, step, _ = HEAD.unpack_from(data)
    return Head(entered, left, step - 1 if step else None) if magic == MAGIC else None


def read(path: Path) -> Snapshot | None:
    """The ring at this moment; None where there is none, or none that makes sense.

    A slot that is being written while it is read, or was overwritten before, ends what is told of
    the calls before it.
    """
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head = _head(data)
    capacity = 0 if head is None else HEAD.unpack_from(data)[1]
    whole = len(data) == HEAD_BYTES + SLOT.size * capacity
    if head is None or not 0 < capacity <= CAPACITY_MOST or not whole:
        return None
    rows: list[tuple[int, int, int]] = []
    for number in range(head.entered - 1, max(head.entered - min(capacity, KEPT), 0) - 1, -1):
        place = HEAD_BYTES + number % capacity * SLOT.size
        told, operation, enter_ns, leave_ns = SLOT.unpack_from(data, place)
        if told != number + 1:
            break
        rows.append((operation, enter_ns, leave_ns))
    rows.reverse()
    return Snapshot(
        head=head,
        first=head.entered - len(rows),
        operations=tuple(operation for operation, _, _ in rows),
        enter_ns=tuple(enter_ns for _, enter_ns, _ in rows),
        leave_ns=tuple(leave_ns or None for _, _, leave_ns in rows),
    )
