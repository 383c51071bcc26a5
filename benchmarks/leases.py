"""Measures leases on a host of eight fake GPUs, which the real nvidia-ml-py finds.

    python benchmarks/leases.py [--quick] [--only storm|wide|ratio|makespan] [--seed 0]

* storm: eight processes take and free 1 to 8 of 8 devices while processes are killed inside
  acquire, hold and release. A witness apart from the locks tells when two hold one device.
* wide: one process takes 8 of 8, holds them for 2 ms and asks again at once, against eight that
  take one, hold it for 20 ms and ask again at once. First come first served, each cycle is then
  eight narrow grants, all at the same time, and one wide grant: narrow ones get (20 + a) / (22 + g)
  of what they get alone, where a is what a narrow lease takes besides its hold when nobody is in
  its way (about 1 ms), and g is what passes in a cycle in which nobody holds what he could: from
  the wide release to the last narrow grant, and from the last narrow release to the wide grant.
  Half, the bound, allows g = 20 ms. A wide request that asks less often costs less.
* ratio: one uncontended acquire and release against a bare filelock's.
* makespan: traces of 200 tests handed out by `--dist gpu`, in virtual time (`makespan.py`).

Prints a line for each and a summary last; exits 1 when a bound is missed. `--without-locks` takes
the locks out, to see that the witness sees.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import filelock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gpu_scheduler
from benchmarks import makespan
from gpu_scheduler import host
from gpu_scheduler.locks import LOCK_DIR_VARIABLE
from tests.fakes.nvml import host_of

DEVICES = 8
WORKERS = 8
PATIENCE_S = 60.0
IDLE, ACQUIRE, HOLD, RELEASE = range(4)
PHASES = {ACQUIRE: "acquire", HOLD: "hold", RELEASE: "release"}

WIDE_P99_S = 1.0
NARROW_SHARE = 0.5
RATIO = 3.0
NARROW_HOLD_S = 0.020
WIDE_HOLD_S = 0.002


@dataclass(frozen=True)
class Section:
    """One measured thing: what it says, and which bounds it missed."""

    said: str
    missed: tuple[str, ...]


# --- processes ---------------------------------------------------------------------------------


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
    """A lock folder of its own, in memory if there is room for it."""
    with tempfile.TemporaryDirectory(prefix="leases-") as folder:
        os.environ[LOCK_DIR_VARIABLE] = f"{folder}/locks"
        yield Path(folder)


def take(count: int, test: str) -> gpu_scheduler.Lease:
    """A lease on fake GPUs."""
    return gpu_scheduler.lease(count, kind="cuda", test=test, wait_s=PATIENCE_S)


# --- the storm ---------------------------------------------------------------------------------


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


def _storm_worker(board: Board, worker: int, folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    witness = Witness(folder)
    while True:
        count = rng.randint(1, DEVICES)
        board.set(worker, ACQUIRE)
        held = take(count, f"worker {worker}")
        board.set(worker, HOLD, granted=1)
        for device in held.devices:
            witness.enter(device.id)
        time.sleep(rng.random() * 0.001)
        for device in held.devices:
            witness.leave(device.id)
        board.set(worker, RELEASE)
        held.release()
        board.set(worker, IDLE)


class Storm:
    """Workers that are replaced as they are killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.board = Board(WORKERS)
        self.kills = dict.fromkeys(PHASES, 0)
        self.failed = 0
        self._folder = folder
        self._seeds = itertools.count(seed * 1_000_000)
        self._rng = random.Random(seed)
        self.pids = [self._start(worker) for worker in range(WORKERS)]

    @property
    def grants(self) -> int:
        """So far, of all workers."""
        return sum(self.board.grants(worker) for worker in range(WORKERS))

    def kill_one(self) -> None:
        """Kills a worker where kills are fewest; where it died is what its board says then."""
        phase = min(PHASES, key=lambda each: self.kills[each])
        worker = self._find(phase)
        # Somewhere within: the phase has begun a moment ago, or lasts for some time.
        until_s = time.monotonic() + self._rng.random() * (0.0001 if phase == RELEASE else 0.001)
        while time.monotonic() < until_s:
            pass
        os.kill(self.pids[worker], signal.SIGKILL)
        _, status = os.waitpid(self.pids[worker], 0)
        if not os.WIFSIGNALED(status):
            self.failed += 1
        died = self.board.phase(worker)
        if died in self.kills:
            self.kills[died] += 1
        self.pids[worker] = self._start(worker)

    def replace_failed(self) -> None:
        """Counts workers that ended by themselves, which none should, and starts others."""
        for worker, pid in enumerate(self.pids):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self.failed += 1
                self.pids[worker] = self._start(worker)

    def _find(self, phase: int) -> int:
        """Returns a worker that is in a phase, any worker when none is for a while."""
        workers = self._rng.sample(range(WORKERS), WORKERS)
        deadline_s = time.monotonic() + 0.1
        while time.monotonic() < deadline_s:
            for worker in workers:
                if self.board.phase(worker) == phase:
                    return worker
        return workers[0]

    def _start(self, worker: int) -> int:
        seed = next(self._seeds)
        self.board.set(worker, IDLE)
        return fork(lambda: _storm_worker(self.board, worker, self._folder, seed))


def storm(grants: int, kills: int, seed: int, *, locks: bool = True) -> Section:
    """Takes, frees and kills until there were so many grants, and kills in each phase."""
    real = filelock.lock_descriptor
    if not locks:
        filelock.lock_descriptor = lambda _descriptor, **_: True
    began_s = time.monotonic()
    with lock_folder() as folder:
        current = Storm(folder, seed)
        try:
            while current.grants < grants or min(current.kills.values()) < kills:
                current.replace_failed()
                if current.failed or (folder / "accusations").exists():
                    break  # The bound is missed, and nobody may get on from here.
                if min(current.kills.values()) < kills:
                    current.kill_one()
                else:
                    time.sleep(0.05)
        finally:
            end(current.pids)
            filelock.lock_descriptor = real
        accusations = _lines(folder / "accusations")
        lost = _lost()
    took_s = time.monotonic() - began_s
    landed = ", ".join(f"{current.kills[each]} in {name}" for each, name in PHASES.items())
    for line in accusations[:5]:
        print(f"  {line}")
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


# --- wide against narrow -----------------------------------------------------------------------


def _narrow_worker(board: Board, worker: int) -> None:
    while True:
        with take(1, f"narrow {worker}"):
            board.set(worker, HOLD, granted=1)
            time.sleep(NARROW_HOLD_S)


def _wide_waits(for_s: float) -> list[float]:
    """Takes all devices again and again; returns each wait in seconds."""
    waits: list[float] = []
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        with take(DEVICES, "wide") as held:
            waits.append(held.wait_s)
            time.sleep(WIDE_HOLD_S)
    return waits


def _narrow_rate(for_s: float, during: Callable[[float], list[float]]) -> tuple[float, list[float]]:
    """Grants per second of eight narrow workers while something else happens."""
    with lock_folder():
        board = Board(WORKERS)
        pids = [fork(lambda w=w: _narrow_worker(board, w)) for w in range(WORKERS)]  # type: ignore[misc]
        try:
            time.sleep(0.5)
            before = sum(map(board.grants, range(WORKERS)))
            began_s = time.monotonic()
            found = during(for_s)
            took_s = time.monotonic() - began_s
            return (sum(map(board.grants, range(WORKERS))) - before) / took_s, found
        finally:
            end(pids)


def _wait(for_s: float) -> list[float]:
    time.sleep(for_s)
    return []


def percentile(values: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]


def wide(for_s: float) -> Section:
    """How long a wide request waits, and what narrow ones lose by it."""
    alone, _ = _narrow_rate(for_s, _wait)
    beside, waits = _narrow_rate(for_s, _wide_waits)
    p99_s = percentile(waits, 99)
    share = beside / alone
    said = (
        f"wide: {len(waits)} grants of 8 of 8, waited median "
        f"{statistics.median(waits) * 1e3:.0f} ms, p99 {p99_s * 1e3:.0f} ms; "
        f"narrow {beside:.0f}/s beside it, {alone:.0f}/s alone ({share:.2f})"
    )
    missed = [
        *(["p99 wait"] if p99_s >= WIDE_P99_S else []),
        *(["narrow throughput"] if share < NARROW_SHARE else []),
    ]
    return Section(said, tuple(f"wide: {each}" for each in missed))


# --- one lease -----------------------------------------------------------------------------------


def ratio(rounds: int, repeats: int) -> Section:
    """One uncontended acquire and release of a GPU, and of a core, against a bare filelock's."""
    with lock_folder() as folder:
        bare = filelock.FileLock(folder / "bare.lock")

        def lock() -> None:
            bare.acquire()
            bare.release()

        def gpu() -> None:
            take(1, "ratio").release()

        def core() -> None:
            gpu_scheduler.lease(1, kind="cpu", test="ratio", wait_s=PATIENCE_S).release()

        calls = (lock, gpu, core)
        # In turn, so that whatever else the machine does falls on all alike.
        times = [[_per_call_s(call, repeats) for call in calls] for _ in range(rounds)]
    gpu_ratio, core_ratio = (
        statistics.median(row[column] / row[0] for row in times) for column in (1, 2)
    )
    lock_us, gpu_us, core_us = (
        statistics.median(column) * 1e6 for column in zip(*times, strict=True)
    )
    said = (
        f"ratio: filelock {filelock.__version__} {lock_us:.0f} us, lease of a GPU {gpu_us:.0f} us "
        f"({gpu_ratio:.2f} x), of a core {core_us:.0f} us ({core_ratio:.2f} x)"
    )
    missed = ("ratio",) if max(gpu_ratio, core_ratio) > RATIO else ()
    return Section(said, missed)


def _per_call_s(call: Callable[[], None], repeats: int) -> float:
    call()
    began_s = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began_s) / repeats


# --- all of it -----------------------------------------------------------------------------------


def sections(options: argparse.Namespace) -> Iterator[Section]:
    """Measures what is asked for, one thing after the other."""
    quick, only = options.quick, options.only
    if only in (None, "ratio"):
        yield ratio(5 if quick else 15, 100 if quick else 500)
    if only in (None, "wide"):
        yield wide(5.0 if quick else 20.0)
    if only in (None, "makespan"):
        lines, kept = makespan.measure(makespan.SEEDS)
        yield Section("\n".join(lines), () if kept else ("makespan",))
    if only in (None, "storm"):
        grants, kills = (
            (options.grants, 0) if options.grants else ((2_000, 20) if quick else (100_000, 1_000))
        )
        yield storm(grants, kills, options.seed, locks=not options.without_locks)


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="under 50 s, with smaller counts")
    parser.add_argument("--only", choices=("storm", "wide", "ratio", "makespan"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grants", type=int, help="of the storm, which then kills nobody")
    parser.add_argument("--without-locks", action="store_true")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Measures in a process that loads the fake library as it would load the driver's."""
    options = parsed(words)
    fake = host_of(DEVICES)
    if os.environ.get("FAKE_NVML_TOPOLOGY") is None:
        command = [sys.executable, __file__, *(sys.argv[1:] if words is None else words)]
        return subprocess.run(command, env=os.environ | fake.environment, check=False).returncode
    missed: list[str] = []
    for section in sections(options):
        print(section.said, flush=True)
        missed += section.missed
    print(f"leases: {'missed: ' + ', '.join(missed) if missed else 'all bounds held'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
