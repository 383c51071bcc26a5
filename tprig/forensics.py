"""Watches how far the ranks of an engine have come, and saves what they were at when it hangs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import psutil

from tprig import evidence, ras, rings
from tprig.bundle import BundleError, Writer
from tprig.bundle.files import reporting
from tprig.wire import WaitExpiredError, Wire

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)
LOOK_S = 1.0
"""Between two looks at how far the ranks have come."""

State = Literal["running", "stopped", "dead"]
_STATES: Mapping[str, State] = {
    psutil.STATUS_STOPPED: "stopped",
    psutil.STATUS_TRACING_STOP: "stopped",
    psutil.STATUS_ZOMBIE: "dead",
    psutil.STATUS_DEAD: "dead",
}


@dataclass(frozen=True, kw_only=True)
class Stall:
    """When a run counts as hung before its own deadline, or not yet after it. In seconds."""

    nobody_computes_s: float = 10.0
    """Without a message or a collective, while each rank is in one, or stopped, or dead."""
    slow_s: float = 900.0
    """Without a message, though collectives go on."""


class Receive(Protocol[M_co]):
    """How messages are waited for: `Wire.receive`."""

    def __call__(self, timeout_s: float, watched: Iterable[int] = ()) -> M_co | int:
        """The next message, or a descriptor that became readable."""


class RankWatch:
    """The ranks of one engine while a run lasts.

    Args:
        run: the run's id.
        pids: the engine's processes, those of the ranks as `rank<n>`.
        runtime: the engine's folder, in which their rings are.
        stall: when a run counts as hung.
        nccl: where NCCL can be asked what it knows; None where there is none.
    """

    def __init__(
        self,
        run: str,
        pids: Mapping[str, int],
        runtime: Path,
        stall: Stall,
        nccl: ras.Address | None = None,
    ) -> None:
        self._run = run
        ranks = {role.removeprefix("rank"): pid for role, pid in pids.items() if role[:4] == "rank"}
        self._pids = {int(rank): pid for rank, pid in ranks.items()}
        self._runtime = runtime
        self._stall = stall
        self._nccl = nccl
        self._looked: tuple[evidence.Progress, ...] = ()
        self._heads: dict[int, rings.Head] = {}
        self._moved_s = time.monotonic()

    def receive(self, wire: Wire[M]) -> Receive[M]:
        """Have collectives count as signs of life where messages of an engine are waited for."""

        def receive(timeout_s: float, watched: Iterable[int] = ()) -> M | int:
            descriptors, began_s = list(watched), time.monotonic()
            self.touch()
            while True:
                with contextlib.suppress(WaitExpiredError):
                    return wire.receive(min(timeout_s, LOOK_S), descriptors)
                self.look()
                self._demand_life(timeout_s, time.monotonic() - began_s)

        return receive

    def _demand_life(self, timeout_s: float, waited_s: float) -> None:
        still_s, stall = self.still_s, self._stall
        if still_s >= timeout_s:
            raise WaitExpiredError(f"no message and no collective for {still_s:.1f} s")
        if still_s >= stall.nobody_computes_s and self.nobody_computes:
            raise WaitExpiredError(
                f"no message and no collective for {still_s:.1f} s, and no rank computes"
            )
        if waited_s >= max(timeout_s, stall.slow_s):
            raise WaitExpiredError(f"no message for {waited_s:.1f} s, though collectives go on")

    def touch(self) -> None:
        """Something else has moved: the engine has told something."""
        self._moved_s = time.monotonic()

    def look(self) -> None:
        """See how far the ranks have come."""
        heads = {
            rank: head
            for rank, pid in self._pids.items()
            if (head := rings.read_head(self._ring(pid))) is not None
        }
        if heads != self._heads or not self._looked:
            self._heads = heads
            self._looked = tuple(self._progress())
            self.touch()

    @property
    def still_s(self) -> float:
        """For how long nothing has moved, as far as was looked."""
        return time.monotonic() - self._moved_s

    @property
    def nobody_computes(self) -> bool:
        """True when each rank is in a collective, or can do nothing: none will go on by itself."""
        return bool(self._heads) and all(
            (rank in self._heads and self._heads[rank].inside) or state(pid) != "running"
            for rank, pid in self._pids.items()
        )

    def _ring(self, pid: int) -> Path:
        return self._runtime / f"{pid}.ring"

    def _progress(self) -> Iterator[evidence.Progress]:
        for rank, pid in self._pids.items():
            head = rings.read_head(self._ring(pid))
            if head is not None:
                yield evidence.Progress(
                    rank=rank,
                    at_ns=time.monotonic_ns(),
                    state=state(pid),
                    entered=head.entered,
                    left=head.left,
                    step=head.step,
                )

    def save(self, writer: Writer) -> None:
        """Write `records` into the bundle, and beside them what NCCL says, if it answers.

        Raises:
            BundleError: if they cannot be written.
        """
        path = f"runs/{self._run}/forensics.jsonl"
        with writer.stream(path, "forensics", self._run) as stream:
            for record in self.records():
                stream.write(record)
        said = None if self._nccl is None else ras.status(self._nccl)
        if said is not None:
            path = f"runs/{self._run}/nccl-ras.txt"
            with reporting(path, "nothing of it was kept"):
                writer.path(path).write_bytes(said)

    def records(self) -> list[evidence.ForensicRecord]:
        """Where every rank was when something moved last, where it is now, and its last calls."""
        found: list[evidence.ForensicRecord] = [*self._looked, *self._progress()]
        for rank, pid in self._pids.items():
            ring = rings.read(self._ring(pid))
            if ring is not None:
                found.append(
                    evidence.Ring(
                        rank=rank,
                        first=ring.first,
                        operations=list(ring.operations),
                        enter_ns=list(ring.enter_ns),
                        leave_ns=list(ring.leave_ns),
                    )
                )
        return found


def receiver(wire: Wire[M], ranks: RankWatch | None) -> Receive[M]:
    """How the messages of an engine are waited for, whose ranks may be watched."""
    return wire.receive if ranks is None else ranks.receive(wire)


def save_rings(ranks: RankWatch | None, writer: Writer) -> BundleError | None:
    """Save where each rank was, before anything is done to it; returns why it could not be."""
    try:
        if ranks is not None:
            ranks.save(writer)
    except BundleError as error:
        return error
    return None


def state(pid: int) -> State:
    """Whether a process runs, was stopped by a signal, or is dead."""
    try:
        return _STATES.get(psutil.Process(pid).status(), "running")
    except psutil.NoSuchProcess:
        return "dead"
