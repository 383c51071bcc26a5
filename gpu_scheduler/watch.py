"""Waits until something happened in the lock folder, by the kernel's word (inotify(7)).

Whoever holds a device, or a place in the queue, keeps its record open for writing. The kernel
closes it however the holder ends, and tells all who watch the folder: a waiter sleeps until then,
where it would otherwise have to ask over and over.

To close what the kernel gives for it takes the kernel milliseconds (it waits until nobody can be
using it any more), which whoever was just granted a lease would spend: it is kept for the next
wait of this process instead.
"""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from types import TracebackType
from typing import Self

_IN_CLOSE_WRITE = 0x8
_FIRST_S = 0.002
"""The kernel tells of a killed holder's files in any order: its lock may be free a moment later."""
_MOST_S = 0.25
"""What nobody tells, such as the end of a record that a cleaner unlinked, is noticed by then."""
_MOST_UNTOLD_S = 0.02
"""The same where the kernel gives no more watches, `fs.inotify.max_user_instances` being few."""
_MOST_UNTOLD_FAR_S = 0.1
"""Still the same, but for one whose turn does not come with the next event anyway."""
_EVENTS_BYTES = 65536


class _Spares:
    """Descriptors that no watch uses now. A forked child has none: it would share the events."""

    def __init__(self) -> None:
        self._idle: list[int] = []
        os.register_at_fork(after_in_child=self._forget)

    def take(self) -> int | None:
        """Returns one to use; `None` where the kernel gives no more."""
        try:
            return self._idle.pop()
        except IndexError:
            return _inotify()

    def give(self, descriptor: int) -> None:
        """Keeps one that nobody uses any more."""
        self._idle.append(descriptor)

    def _forget(self) -> None:
        for descriptor in self._idle:
            with suppress(OSError):
                os.close(descriptor)
        self._idle.clear()


_spares = _Spares()


class Watch:
    """Sleeps that end when a file is closed after writing; use in a `with`."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._paths: list[str] = []
        self._watched: list[int] = []
        self._descriptor = _spares.take()
        self._owner = os.getpid()
        if self._descriptor is not None:
            self._poll.register(self._descriptor, select.POLLIN)
        self._next_s = _FIRST_S

    def turn_to(self, paths: Sequence[str]) -> bool:
        """Watches these files, and the files of these folders, and nothing else from now on.

        Returns:
            True when it did not do so before: what happened until now went unseen.
        """
        if list(paths) == self._paths:
            return False
        self._paths = list(paths)
        self._next_s = _FIRST_S
        self._watch(paths)
        return True

    def _watch(self, paths: Sequence[str]) -> None:
        if self._descriptor is not None:
            libc = _libc()
            for watched in self._watched:
                libc.inotify_rm_watch(self._descriptor, watched)
            self._watched = [
                libc.inotify_add_watch(self._descriptor, os.fsencode(path), _IN_CLOSE_WRITE)
                for path in paths
            ]
            self._drain()

    def wait(self, most_s: float, *, far: bool = False) -> float:
        """Sleeps until something happened, but never longer than `most_s`.

        What happens between two waits ends the second one at once. Without events each sleep lasts
        twice as long as the one before, up to a bound.

        Args:
            most_s: In seconds.
            far: Whether more must happen than one thing before the sleeper has its turn.

        Returns:
            For how many seconds nothing happened; 0 when something did.
        """
        sleep_s = min(self._next_s, most_s)
        told = bool(self._poll.poll(max(0.0, sleep_s) * 1000))
        if told:
            self._drain()
        untold_s = _MOST_UNTOLD_FAR_S if far else _MOST_UNTOLD_S
        bound_s = _MOST_S if self._watched and min(self._watched) >= 0 else untold_s
        self._next_s = _FIRST_S if told else min(2 * self._next_s, bound_s)
        return 0.0 if told else sleep_s

    def _drain(self) -> None:
        if self._descriptor is not None:
            with suppress(BlockingIOError):
                while os.read(self._descriptor, _EVENTS_BYTES):
                    pass

    def close(self) -> None:
        """Ends the watch."""
        if self._descriptor is not None and self._owner == os.getpid():
            self._watch([])
            _spares.give(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _inotify() -> int | None:
    """Returns a descriptor for events; `None` where the kernel gives none."""
    try:
        descriptor: int = _libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, AttributeError):
        return None
    return None if descriptor < 0 else descriptor


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
