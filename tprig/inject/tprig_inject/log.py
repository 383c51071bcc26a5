"""Numbers a process's collectives, keeps the last ones in a ring, and spills them into the stream.

What is told of a collective is told once: a call costs its key, its caller's frames and one slot.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from pathlib import Path
from time import monotonic_ns as now_ns
from types import CodeType, FrameType
from typing import Any

from tprig_inject.ring import (
    ENTERED,
    HEAD_WORDS,
    LEFT,
    SLOT_WORDS,
    SPILLED,
    STEP,
    Ring,
    pack_slot,
)

FRAMES = 4
WALK_MOST = 24
PLUMBING = ("/torch/", "/vllm/distributed/", "/tprig_inject/", "/contextlib.py")
"""Parts of the paths of files whose frames say nothing of who asked for a collective."""

CAPTURED = -1
"""Ends the frames of a call that was captured, so that it is told apart from an eager one."""

Write = Callable[[dict[str, Any]], None]
Frames = tuple[int, ...]


class Log:
    """The collectives of one process during one run.

    Args:
        ring: where calls are kept until they are spilled.
        write: appends a record to the rank's stream.
    """

    def __init__(self, ring: Ring, write: Write) -> None:
        self._ring = ring
        self._words = ring.words
        self._map = ring.map
        self._capacity = ring.capacity
        self._write = write
        self._numbers: dict[Hashable, int] = {}
        self._told = 0
        self._entered = 0
        self._left = 0
        self._spilled = 0
        self._depth = 0
        self._frames: Frames = ()
        self._asking: dict[int, bool] = {}
        self._codes: dict[int, CodeType] = {}
        self.mode = "eager"
        """`capture` while a graph is captured."""

    @property
    def entered(self) -> int:
        """How many calls were entered."""
        return self._entered

    def enter(self, key: Hashable, tell: Callable[[], dict[str, Any]]) -> int:
        """A call begins; returns the ticket to leave it with.

        Args:
            key: equal for calls that are told alike.
            tell: the operation, of which only id, mode and location are added here.
        """
        slot = self.enter_known(key)
        if slot is None:
            slot = self._push(self._tell((key, self._frames), tell()))
        return slot

    def enter_known(self, key: Hashable) -> int | None:
        """As `enter`, for a call that was told before; None for one that was not."""
        if self._depth == 0:
            # A wire operation was asked for from where the semantic one around it was.
            self._frames = self._walk(sys._getframe(1))
        number = self._numbers.get((key, self._frames))
        return None if number is None else self._push(number)

    def _push(self, number: int) -> int:
        ticket = self._entered
        if ticket - self._spilled >= self._capacity and self._depth == 0:
            self.spill()
        self._entered = entered = ticket + 1
        self._depth += 1
        slot = HEAD_WORDS + ticket % self._capacity * SLOT_WORDS
        pack_slot(self._map, slot * 8, entered, number, now_ns(), 0)
        self._words[ENTERED] = entered
        return slot

    def leave(self, slot: int) -> None:
        """The call of that ticket has ended."""
        words = self._words
        words[slot + 3] = now_ns()
        self._left = words[LEFT] = self._left + 1
        self._depth -= 1

    def number(self, key: Hashable, operation: dict[str, Any]) -> int:
        """The number of an operation that is told as it stands, and told now if it is new."""
        found = self._numbers.get(key)
        return self._tell(key, operation, whole=True) if found is None else found

    def _tell(self, key: Hashable, operation: dict[str, Any], *, whole: bool = False) -> int:
        number = self._numbers[key] = self._told
        self._told += 1
        added = {} if whole else {"mode": self.mode, "location": self._location()}
        self._write({"type": "operation", "id": number, **added, **operation})
        return number

    def begin_step(self, step: int) -> None:
        """Say where this process is, for whoever looks at the ring."""
        self._words[STEP] = step + 1

    def spill(self) -> None:
        """Write the calls that have ended into the stream; inside of a call nothing is written."""
        if self._depth or self._spilled == self._entered:
            return
        first = max(self._spilled, self._entered - self._capacity)
        operations, enter_ns, leave_ns = self._ring.rows(first, self._entered)
        self._write(
            {
                "type": "calls",
                "first": first,
                "operations": operations,
                "enter_ns": enter_ns,
                "leave_ns": leave_ns,
            }
        )
        self._spilled = self._words[SPILLED] = self._entered

    # --- who asks ----------------------------------------------------------------------------

    def _walk(self, frame: FrameType | None) -> Frames:
        """Code (by its id) and place of the innermost frames that are no plumbing."""
        kept: list[int] = []
        known = self._asking
        for _ in range(WALK_MOST):
            if frame is None:
                break
            # A code object hashes all that it holds, each time it is asked.
            code = id(frame.f_code)
            asks = known.get(code)
            if asks is None:
                asks = self._asks(frame.f_code)
            if asks:
                kept += (code, frame.f_lasti)
                if len(kept) == 2 * FRAMES:
                    break
            frame = frame.f_back
        return tuple(kept) if self.mode == "eager" else (*kept, CAPTURED, CAPTURED)

    def _asks(self, code: CodeType) -> bool:
        """Whether a frame of this code says who asked; held on to, so that its id stays its own."""
        self._codes[id(code)] = code
        asks = self._asking[id(code)] = not any(part in code.co_filename for part in PLUMBING)
        return asks

    def _location(self) -> list[str]:
        """The frames of the current call in words."""
        pairs = zip(self._frames[::2], self._frames[1::2], strict=True)
        return [_told(self._codes[code], place) for code, place in pairs if code != CAPTURED]


def _told(code: CodeType, place: int) -> str:
    line = code.co_firstlineno
    for begin, end, number in code.co_lines():
        if begin <= place < end and number is not None:
            line = number
    return f"{Path(code.co_filename).name}:{code.co_name}:{line}"
