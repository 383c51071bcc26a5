"""Eight processes take and free 1 to 8 of 8 devices while they are killed, and a witness looks on.

Each worker but the last ones of a run has a fate: the phase of its loop (acquire, hold or release)
in which it is to die, and after how many grants. Once it is there it sets the kernel's timer for
SIGKILL, at random within as long as that phase has lasted before: the kernel ends it wherever it is
by then, in whatever system call, and nothing of it runs any more. Where it died is what it has last
written to the board; one that was through with the phase before tries again the next time.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import random
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import filelock

import gpu_scheduler
from gpu_scheduler import host
from gpu_scheduler.locks import LOCK_DIR_VARIABLE

DEVICES = 8
WORKERS = 8
PATIENCE_S = 60.0
IDLE, ACQUIRE, HOLD, RELEASE = range(4)
PHASES = {ACQUIRE: "acquire", HOLD: "hold", RELEASE: "release"}
HOLD_S = 0.001
_LOOK_S = 0.002
"""How often the dead are looked for and replaced."""


@dataclass(frozen=True)
class Section:
    """One measured thing: what it says, and which bounds it missed."""

    said: str
    missed: tuple[str, ...]


class Board:
    """What forked workers tell their parent, in shared memory: it outlives whoever is killed."""

    _FIELDS = struct.Struct("=qq")

    def __init__(self, workers: int) -> None:
        self._memory = mmap.mmap(-1, workers * self._FIELDS.size)

    def phase(self, worker: int) -> int:
        """Where in its loop a worker is, or was when it died."""
        return int(self._FIELDS.unpack_from(self._memory, worker * self._FIELDS.size)[0])

    def grants(self, worker: int) -> int:
        """How many leases a worker and those that it replaced were granted."""
        return int(self._FIELDS.unpack_from(self._memory, worker * self._FIELDS.size)[1])

    def set(self, worker: int, phase: int, granted: int = 0) -> None:
        """Told by the worker."""
        fields = (phase, self.grants(worker) + granted)
        self._FIELDS.pack_into(self._memory, worker * self._FIELDS.size, *fields)


def fork(work: Callable[[], None]) -> int:
    """Runs something in a forked child; returns its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def end(pids: Sequence[int]) -> None:
    """Kills children and waits for them."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


@contextmanager
def lock_folder() -> Iterator[Path]:
    """A lock folder of its own."""
    with tempfile.TemporaryDirectory(prefix="leases-") as folder:
        os.environ[LOCK_DIR_VARIABLE] = f"{folder}/locks"
        yield Path(folder)


def take(count: int, test: str) -> gpu_scheduler.Lease:
    """A lease on fake GPUs."""
    return gpu_scheduler.lease(count, kind="cuda", test=test, wait_s=PATIENCE_S)


# --- the witness -------------------------------------------------------------------------------


class Witness:
    """Sees two holders of one device without looking at any lock.

    A holder makes a file per device, exclusively (link(2) fails where the name exists), which bears
    its pid from the first moment. One that is left by a process that died is taken over: that the
    maker is dead is the one good reason to find it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mine = folder / f"pid-{os.getpid()}"
        self._mine.write_text(str(os.getpid()))

    def enter(self, device_id: str) -> None:
        """Makes the file."""
        path = self._folder / f"held-{device_id}"
        while True:
            try:
                os.link(self._mine, path)
            except FileExistsError:
                self._meet(path)
            else:
                return

    def leave(self, device_id: str) -> None:
        """Takes the file away, if it is still this holder's."""
        path = self._folder / f"held-{device_id}"
        if _maker(path) == os.getpid():
            path.unlink()
        else:
            self._accuse(f"{device_id}: expected {os.getpid()}, found {_maker(path)}")

    def _meet(self, path: Path) -> None:
        """Waits for the maker to be dead: a killed process lets its locks go before it is gone."""
        maker = _maker(path)
        deadline_s = time.monotonic() + 1.0
        while maker is not None and host.is_running(maker):
            if _maker(path) != maker or time.monotonic() > deadline_s:
                self._accuse(f"{path.name}: {maker} lives and held it too")
                break
            time.sleep(0.0005)
        with suppress(FileNotFoundError):
            if _maker(path) == maker:
                path.unlink()

    def _accuse(self, text: str) -> None:
        with (self._folder / "accusations").open("a") as file:
            file.write(f"{os.getpid()}: {text}\n")


def _maker(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


# --- the storm ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fate:
    """Where and when a worker is to die."""

    phase: int
    """One of `PHASES`; `IDLE` for never."""
    grants: int
    """It lives at least until it was granted so many leases."""


class SelfDestruction:
    """The kernel's timer that ends this process by SIGKILL (timer_create(2)).

    Raises:
        OSError: The kernel gives none.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        # struct sigevent: a value, the signal, SIGEV_SIGNAL, and padding.
        event = struct.pack("=qii48x", 0, signal.SIGKILL, 0)
        if self._libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(self._timer)):
            raise OSError(ctypes.get_errno(), "timer_create")

    def set(self, after_s: float) -> None:
        """Ends this process after so many seconds, at least a microsecond; never if negative."""
        after_ns = 0 if after_s < 0 else max(1_000, int(after_s * 1e9))
        once = struct.pack("=qqqq", 0, 0, *divmod(after_ns, 1_000_000_000))
        if self._libc.timer_settime(self._timer, 0, once, None):
            raise OSError(ctypes.get_errno(), "timer_settime")


class _Worker:
    """What runs in a forked child."""

    def __init__(self, board: Board, number: int, folder: Path, seed: int, fate: Fate) -> None:
        self._board = board
        self._number = number
        self._folder = folder
        self._rng = random.Random(seed)
        self._fate = fate
        self._usual_s = 0.0
        """How long the phase of its fate has lasted, about."""
        self._granted = 0

    def run(self) -> None:
        """Takes and frees until it is killed."""
        witness = Witness(self._folder)
        destruction = SelfDestruction()
        while True:
            count = self._rng.randint(1, DEVICES)
            with self._phase(ACQUIRE, destruction):
                held = take(count, f"worker {self._number}")
            self._granted += 1
            with self._phase(HOLD, destruction, granted=1):
                for device in held.devices:
                    witness.enter(device.id)
                time.sleep(self._rng.random() * HOLD_S)
                for device in held.devices:
                    witness.leave(device.id)
            with self._phase(RELEASE, destruction):
                held.release()
            self._board.set(self._number, IDLE)

    @contextmanager
    def _phase(self, phase: int, destruction: SelfDestruction, granted: int = 0) -> Iterator[None]:
        self._board.set(self._number, phase, granted)
        mine = phase == self._fate.phase
        if mine and self._granted >= self._fate.grants:
            destruction.set(self._rng.random() * self._usual_s)
        began_s = time.monotonic()
        yield
        if mine:
            destruction.set(-1)
            took_s = time.monotonic() - began_s
            self._usual_s = took_s if not self._usual_s else (self._usual_s + took_s) / 2


class Storm:
    """Workers that are replaced as they die.

    Args:
        folder: The witness's.
        seed: Of all that is random.
        grants: How many there are to be in all.
        kills: How many there are to be in each phase.
    """

    def __init__(self, folder: Path, seed: int, grants: int, kills: int) -> None:
        self.board = Board(WORKERS)
        self.kills = dict.fromkeys(PHASES, 0)
        self.failed = 0
        self._folder = folder
        self._wanted = kills
        # Deaths are spread over the run: a life lasts nearly as many grants as there are per death.
        self._life = 0.8 * grants / (len(PHASES) * kills) if kills else 0.0
        self._seeds = itertools.count(seed * 1_000_000)
        self._rng = random.Random(seed)
        self._fates: dict[int, tuple[int, Fate]] = {}
        """By pid: which worker it is, and what is to become of it."""
        for worker in range(WORKERS):
            self._start(worker)

    @property
    def grants(self) -> int:
        """So far, of all workers."""
        return sum(self.board.grants(worker) for worker in range(WORKERS))

    @property
    def pids(self) -> list[int]:
        """Of those that live."""
        return list(self._fates)

    def bury(self) -> None:
        """Counts those that died since, where they were, and starts others."""
        for pid in self.pids:
            found, status = os.waitpid(pid, os.WNOHANG)
            if not found:
                continue
            worker, _ = self._fates.pop(pid)
            died = self.board.phase(worker)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                self.kills[died] = self.kills.get(died, 0) + 1
            else:
                self.failed += 1
            self._start(worker)

    def _start(self, worker: int) -> None:
        self.board.set(worker, IDLE)
        fate = self._fate()
        work = _Worker(self.board, worker, self._folder, next(self._seeds), fate)
        self._fates[fork(work.run)] = worker, fate

    def _fate(self) -> Fate:
        """Death in the phase in which fewest have died or are to die, while more are wanted."""
        due = {phase: self.kills[phase] for phase in PHASES}
        for _, fate in self._fates.values():
            if fate.phase in due:
                due[fate.phase] += 1
        phase = min(due, key=lambda each: due[each])
        if due[phase] >= self._wanted:
            return Fate(phase=IDLE, grants=0)
        # One grant at least, to know how long the phase lasts.
        return Fate(phase=phase, grants=1 + int(self._rng.random() * 2 * self._life))


def storm(grants: int, kills: int, seed: int, *, locks: bool = True) -> Section:
    """Takes, frees and kills until there were so many grants, and kills in each phase."""
    real = filelock.lock_descriptor
    if not locks:
        filelock.lock_descriptor = lambda _descriptor, **_: True
    began_s = time.monotonic()
    with lock_folder() as folder:
        take(DEVICES, "before").release()  # loads what all workers then have
        current = Storm(folder, seed, grants, kills)
        try:
            while current.grants < grants or min(current.kills[each] for each in PHASES) < kills:
                time.sleep(_LOOK_S)
                current.bury()
                if current.failed or (folder / "accusations").exists():
                    break  # The bound is missed, and nobody may get on from here.
        finally:
            end(current.pids)
            filelock.lock_descriptor = real
        accusations = _lines(folder / "accusations")
        lost = _lost()
    took_s = time.monotonic() - began_s
    for line in accusations[:5]:
        print(f"  {line}")
    landed = ", ".join(f"{current.kills[each]} in {name}" for each, name in PHASES.items())
    said = (
        f"storm: {current.grants} grants in {took_s:.0f} s ({current.grants / took_s:.0f}/s), "
        f"killed {landed}; {len(accusations)} double grants, {lost} lost devices, "
        f"{current.failed} failed workers"
    )
    missed = [
        *(["double grants"] if accusations else []),
        *(["lost devices"] if lost else []),
        *(["failed workers"] if current.failed else []),
    ]
    return Section(said, tuple(f"storm: {each}" for each in missed))


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _lost() -> int:
    """How many devices nobody can have although nobody lives who could hold them."""
    try:
        gpu_scheduler.lease(DEVICES, kind="cuda", test="after", wait_s=5).release()
    except gpu_scheduler.LeaseTimeout as error:
        return len(error.refusals)
    return 0
