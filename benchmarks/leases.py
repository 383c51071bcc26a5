"""Measures leases on a host of eight fake GPUs, which the real nvidia-ml-py finds.

    python benchmarks/leases.py [--quick] [--only storm|wide|ratio|makespan] [--seed 0]

* storm: eight processes take and free 1 to 8 of 8 devices while they are killed inside acquire,
  hold and release. A witness apart from the locks tells when two hold one device (`storm.py`).
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
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import filelock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gpu_scheduler
from benchmarks import makespan
from benchmarks.storm import (
    DEVICES,
    HOLD,
    PATIENCE_S,
    WORKERS,
    Board,
    Section,
    end,
    fork,
    lock_folder,
    storm,
    take,
)
from tests.fakes.nvml import host_of

WIDE_P99_S = 1.0
NARROW_SHARE = 0.5
RATIO = 3.0
NARROW_HOLD_S = 0.020
WIDE_HOLD_S = 0.002


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
        grants, kills = (2_000, 20) if quick else (100_000, 1_000)
        if options.grants is not None:
            grants, kills = options.grants, options.kills
        yield storm(grants, kills, options.seed, locks=not options.without_locks)


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="under 50 s, with smaller counts")
    parser.add_argument("--only", choices=("storm", "wide", "ratio", "makespan"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grants", type=int, help="of the storm, in place of 100000")
    parser.add_argument("--kills", type=int, default=0, help="in each phase, with --grants")
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
