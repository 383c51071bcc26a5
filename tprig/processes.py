"""An engine's processes: forked, watched, signalled, and shown to be gone."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from tprig import tails
from tprig.remains import Footprint
from tprig.template import Child, Template
from tprig.wire import poll

EXIT_CODE_WAIT_S = 2.0
ENDS_S = 2.0
"""Until a process that has let go of its descriptors has ended."""
POLL_S = 0.02


class _Watched(NamedTuple):
    pid: int
    role: str


class Processes:
    """The processes of one engine, the host first.

    Args:
        engine: the engine's id.
        template: forks the host.

    Attributes:
        footprint: their place on the machine.
        host: the host, once it was forked.

    Raises:
        RuntimeFolderError: if there is no place for them.
    """

    def __init__(self, engine: str, template: Template) -> None:
        self.footprint = Footprint(engine)
        self.host: Child | None = None
        self._template = template
        self._watched: dict[int, _Watched] = {}

    def fork(self, request: Mapping[str, Any]) -> Child:
        """Fork the host and watch it.

        Raises:
            TemplateError: if the template cannot.
            RuntimeFolderError: if it cannot be written down whose host it is.
        """
        self.host = self._template.fork(request)
        self.footprint.own(self.host.pid)
        self.watch(self.host.pid, "host")
        return self.host

    def watch(self, pid: int, role: str) -> None:
        """Have a process among `descriptors`, to hear at once when it ends.

        Args:
            pid: the process; one that is watched keeps its first role.
            role: `host`, `core`, `rank0`, ...
        """
        if any(pid == watched.pid for watched in self._watched.values()):
            return
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            # Stands for the process that is gone: it can be read, too.
            descriptor = os.eventfd(1)
        self._watched[descriptor] = _Watched(pid, role)

    @property
    def descriptors(self) -> list[int]:
        """One per watched process; it becomes readable when the process ends."""
        return list(self._watched)

    def pids(self) -> tuple[int, ...]:
        """Those that live."""
        return self.footprint.pids()

    def dead(self, patience_s: float = 0.0, but: str = "") -> dict[int, str]:
        """The watched processes that have ended: role by pid.

        Args:
            patience_s: longest wait for the first: a process lets go of its descriptors, which
                others notice, a moment before it has ended.
            but: a role that does not count.
        """
        counted = {fd: watched for fd, watched in self._watched.items() if watched.role != but}
        ended = [counted[descriptor] for descriptor in poll(list(counted), patience_s)]
        return {watched.pid: watched.role for watched in ended}

    def endings(self, dead: Mapping[int, str]) -> dict[int, str]:
        """How those processes ended that no other one took along: words by pid.

        Args:
            dead: role by pid.
        """
        if self.host is None:
            return {}
        if self.host.pid not in dead:
            codes = {pid: self._exit_code(pid) for pid in dead}
            # An end that no parent has noted is that of a process whose parent went first: the
            # kernel ends it with the host, and may be seen to do so a moment before the host.
            if None not in codes.values() or "host" not in self.dead().values():
                # One that ended in order, in the wake of another, is not to blame.
                blamed = [pid for pid, code in codes.items() if code != 0] or list(codes)
                return {
                    pid: f"process {dead[pid]} (pid {pid}) {tails.ending(codes[pid])}"
                    for pid in blamed
                }
        return self._host_took_all(self.host.pid)

    def _host_took_all(self, host: int) -> dict[int, str]:
        code = self._template.exit_code(host, EXIT_CODE_WAIT_S)
        if code is None and (ending := self._template.ending(EXIT_CODE_WAIT_S)):
            template = self._template.pid
            return {template: f"the warm template (pid {template}) {ending}, and the host with it"}
        return {**self._noted(), host: f"process host (pid {host}) {tails.ending(code)}"}

    def _noted(self) -> dict[int, str]:
        """Those that the host still saw fail, and so may have gone because of: words by pid."""
        dead = self.dead(but="host")
        codes = {pid: self.footprint.exit_code(pid) for pid in dead}
        return {
            pid: f"process {dead[pid]} (pid {pid}) {tails.ending(code)}"
            for pid, code in codes.items()
            if code
        }

    def _exit_code(self, pid: int) -> int | None:
        """What the process's parent, one of the engine's, has noted of its end."""
        deadline_s = time.monotonic() + EXIT_CODE_WAIT_S
        while (code := self.footprint.exit_code(pid)) is None and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        return code

    def signal(self, number: signal.Signals) -> tuple[int, ...]:
        """Send a signal to all that live; returns them."""
        pids = self.pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    def await_gone(self, timeout_s: float) -> None:
        """Wait until none lives, or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while self.pids() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)

    def host_ending(self) -> str:
        """How the host ended, in words."""
        if self.host is None:
            return "no process of it was started"
        code = self._template.exit_code(self.host.pid, EXIT_CODE_WAIT_S)
        return f"host {tails.ending(code)}"

    def release(self) -> None:
        """Watch no more."""
        for descriptor in self._watched:
            os.close(descriptor)
        self._watched.clear()
