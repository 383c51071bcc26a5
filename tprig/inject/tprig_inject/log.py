"""Numbers a process's collectives, keeps the last ones in a ring, and spills them into the stream.

What is told of a collective is told once: a call costs its key, a look at its caller's frames and
one slot. Calls are written in batches; until then they are in the ring, which outlives the process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
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

GENERATED = ("/torch_compile_cache/", "/torchinductor_")
"""Parts of the paths of files that torch.compile writes, by default and for vLLM."""

Tell = Callable[[tuple[Any, ...], dict[str, Any], Hashable, FrameType], int | None]
Met = tuple[Any, Any, Any, "Site", int]
"""Whose call it was, with a tensor of which shape and dtype, from where, and its number."""
Write = Callable[[dict[str, Any]], None]
Frame = tuple[int, CodeType, int]
"""How far out it is, its code, and the instruction that it is at."""
_frame = sys._getframe


@dataclass(frozen=True)
class Quick:
    """How to tell a call from its arguments as they stand.

    Attributes:
        seam: where it is called.
        tensor: place of the tensor that says everything besides whose call it is: that of the
            first argument, or of `group` where that alone is given by its name.
        count: of the arguments that are given by their places.
        key: of what is told otherwise: a key, or None for what must be looked at closer.
    """

    seam: str
    tensor: int = -1
    count: int = 0
    key: Callable[[tuple[Any, ...], dict[str, Any]], Hashable] | None = None


class Site:
    """From where a collective was asked for: the innermost frames that are no plumbing.

    Attributes:
        frames: those frames, from within.
        numbers: the operations that were asked for from here, by their keys.
        follows: what came after the last call from here, by its key; and what came last of each
            seam, by the seam. Steps repeat: to look whether it is that again spares the walk.
        inner: the same of what was asked for within a call from here.
    """

    __slots__ = ("follows", "frames", "inner", "numbers")

    def __init__(self, frames: tuple[Frame, ...]) -> None:
        self.frames = frames
        self.numbers: dict[Hashable, int] = {}
        self.follows: dict[Hashable, Met] = {}
        self.inner: dict[Hashable, Met] = {}

    def location(self) -> list[str]:
        """The frames in words: `file:function:line`, or `compiled:function` of generated code."""
        return [_told(code, place) for _, code, place in self.frames]


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
        self._spilled = 0
        self._depth = 0
        self._asking: dict[int, bool] = {}
        self._codes: dict[int, CodeType] = {}
        self._sites: dict[Hashable, Site] = {}
        self._begin("eager")

    def _begin(self, mode: str) -> None:
        self._mode = mode
        # No site of another mode follows on it: who captures is told apart from who runs eagerly.
        self._site = self._sites.setdefault(mode, Site(()))

    @property
    def mode(self) -> str:
        """`eager`, or `capture` while a graph is captured."""
        return self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        self._begin(mode)

    @property
    def entered(self) -> int:
        """How many calls were entered."""
        return self._entered

    def around(  # noqa: C901, PLR0915 - each call of its own would cost a worker more
        self, original: Callable[..., Any], quick: Quick, tell: Tell
    ) -> Callable[..., Any]:
        """A callable that does as the original does and logs it, whatever becomes of it.

        All that a call costs is in this one function: a worker waits for it.

        Args:
            original: what is called.
            quick: how to tell a call that was told before.
            tell: finds a call's operation, or tells it.
        """
        words, mapped, capacity = self._words, self._map, self._capacity
        seam, place, count, key_of = quick.seam, quick.tensor, quick.count, quick.key

        def logged(*args: Any, **kwargs: Any) -> Any:  # noqa: C901 - see above
            depth, site = self._depth, self._site
            # A wire operation was asked for from where the semantic one around it was.
            known = site.inner if depth else site.follows
            key = met = number = None
            try:
                if key_of is not None:
                    key = key_of(args, kwargs)
                    met = known.get(key)
                elif len(args) == count and len(kwargs) < 2:
                    owner = kwargs["group"] if kwargs else args[0]
                    shape, dtype = args[place].shape, args[place].dtype
                    met = known.get(seam)
                    if met is None or met[0] is not owner or met[1] != shape or met[2] is not dtype:
                        key = (seam, id(owner), shape, dtype)
                        if (met := known.get(key)) is not None:
                            known[seam] = (owner, shape, dtype, *met[3:])
                if met is not None:
                    for out, code, at in () if depth else met[3].frames:
                        frame = _frame(out)
                        if frame.f_lasti != at or frame.f_code is not code:
                            key = key or (seam, id(owner), shape, dtype)
                            break
                    else:
                        self._site, number = met[3:]
            except (AttributeError, KeyError, TypeError, ValueError):
                # What it was given is not what it usually is, or the stack is not as deep.
                key = None
            if number is None and (number := tell(args, kwargs, key, _frame(0))) is None:
                return original(*args, **kwargs)
            ticket = self._entered
            if not depth and ticket - self._spilled >= capacity:
                self.spill()
            self._entered = entered = ticket + 1
            self._depth = depth + 1
            slot = HEAD_WORDS + ticket % capacity * SLOT_WORDS
            pack_slot(mapped, slot * 8, entered, number, now_ns(), 0)
            words[ENTERED] = entered
            try:
                return original(*args, **kwargs)
            finally:
                words[slot + 3] = now_ns()
                self._depth = depth
                words[LEFT] = self._entered - depth

        return logged

    def find(self, key: Hashable, frame: FrameType | None) -> int | None:
        """The number of the operation of a call that begins; None if it was never told.

        Args:
            key: equal for calls that are told alike.
            frame: of what `around` has made.
        """
        before = self._site
        if self._depth:
            known, site, whole = before.inner, before, True
        else:
            frames = self._walk(frame)
            # What lies between them is not looked at when they are met again: it is plumbing.
            where = (self._mode, *((out, id(code), at) for out, code, at in frames))
            known, site = before.follows, self._sites.setdefault(where, Site(frames))
            # One with fewer frames would be met again wherever those few are.
            whole = len(frames) == FRAMES
        self._site = site
        number = site.numbers.get(key)
        if number is not None and whole:
            known[key] = (None, None, None, site, number)
        return number

    def tell(self, key: Hashable, operation: dict[str, Any]) -> int:
        """Tell the operation of a call that `find` has not found, but for its mode and location."""
        site = self._site
        added = {"mode": self._mode, "location": site.location()}
        number = site.numbers[key] = self._tell(added | operation)
        return number

    def number(self, key: Hashable, operation: dict[str, Any]) -> int:
        """The number of an operation that is told as it stands, and told now if it is new."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._tell(operation)
        return number

    def _tell(self, operation: dict[str, Any]) -> int:
        number = self._told
        self._told += 1
        self._write({"type": "operation", "id": number, **operation})
        return number

    def begin_step(self, step: int) -> None:
        """Say where this process is, for whoever looks at the ring."""
        self._words[STEP] = step + 1

    def spill(self, least: int = 1) -> None:
        """Write the calls that have ended into the stream; inside of a call nothing is written.

        Args:
            least: how many there must be.
        """
        if self._depth or self._entered - self._spilled < least:
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

    def _walk(self, frame: FrameType | None) -> tuple[Frame, ...]:
        """The innermost frames that are no plumbing."""
        kept: list[Frame] = []
        for out in range(WALK_MOST):
            if frame is None or len(kept) == FRAMES:
                break
            code = frame.f_code
            # A code object hashes all that it holds, each time it is asked.
            asks = self._asking.get(id(code))
            if self._asks(code) if asks is None else asks:
                kept.append((out, code, frame.f_lasti))
            frame = frame.f_back
        return tuple(kept)

    def _asks(self, code: CodeType) -> bool:
        """Whether a frame of this code says who asked; held on to, so that its id stays its own."""
        self._codes[id(code)] = code
        asks = self._asking[id(code)] = not any(part in code.co_filename for part in PLUMBING)
        return asks


def _told(code: CodeType, place: int) -> str:
    if _is_generated(code.co_filename):
        # Named after a digest of what it holds, which each rank's own shard decides.
        return f"compiled:{code.co_name}"
    line = code.co_firstlineno
    for begin, end, number in code.co_lines():
        if begin <= place < end and number is not None:
            line = number
    return f"{Path(code.co_filename).name}:{code.co_name}:{line}"


def _is_generated(path: str) -> bool:
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return any(part in path for part in GENERATED) or bool(cache and path.startswith(f"{cache}/"))
