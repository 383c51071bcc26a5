"""A ring of calls in shared memory, which outlives the process that wrote it.

Words of 64 bits, little-endian: a head, then slots of four. The client reads it when nothing moves
any more, or when the process is dead; `tprig.rings` has the other end of the format.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

MAGIC = 0x31474E4952504954
HEAD_WORDS = 16
SLOT_WORDS = 4
"""Sequence number plus one, operation, entered, left: nanoseconds, 0 while it is not left."""
CAPACITY = 1 << 13
pack_slot = struct.Struct("<4Q").pack_into
"""Writes a slot at a byte of the map."""
ENTERED, LEFT, STEP, SPILLED = 2, 3, 4, 5
"""Words of the head: calls entered and left, the step plus one, and calls in the stream."""


class Ring:
    """The last calls of this process.

    Args:
        path: the file to map; None keeps the ring to this process.
        capacity: how many calls it holds; a power of two.
    """

    def __init__(self, path: Path | None, capacity: int = CAPACITY) -> None:
        words = HEAD_WORDS + SLOT_WORDS * capacity
        if path is None:
            self.map = mmap.mmap(-1, words * 8)
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            os.ftruncate(descriptor, words * 8)
            self.map = mmap.mmap(descriptor, words * 8)
            os.close(descriptor)
        self.words = memoryview(self.map).cast("Q")
        self.capacity = capacity
        self.words[1] = capacity
        # Last: whoever sees it sees a whole head.
        self.words[0] = MAGIC

    def rows(self, first: int, end: int) -> tuple[list[int], list[int], list[int]]:
        """Operations, enter and leave times of consecutive calls that it still holds.

        Args:
            first: sequence number of the first.
            end: of the one after the last.
        """
        words: list[int] = []
        while first < end:
            place = first % self.capacity
            count = min(end - first, self.capacity - place)
            begin = HEAD_WORDS + place * SLOT_WORDS
            words += self.words[begin : begin + count * SLOT_WORDS].tolist()
            first += count
        return words[1::SLOT_WORDS], words[2::SLOT_WORDS], words[3::SLOT_WORDS]
