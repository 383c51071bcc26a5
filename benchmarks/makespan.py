"""How close `--dist gpu` comes to the lower bound of the makespan, beside xdist's `--dist load`.

    python benchmarks/makespan.py [--quick]

Traces of 200 tests at TP1, TP2, TP4 and TP8 with log-normal durations are played on 8 virtual GPUs
by 8 virtual workers. The schedulers are the real ones, our own and xdist's; a worker starts a test
when it knows the one after it, as xdist's do, and gets its devices from the queue of the leases,
by their policy. Bound: at most 1.05 times max(GPU-seconds / 8, longest test) on each trace, with
the durations of an earlier run at hand. A first run, of which nothing was recorded, is printed
beside it and not judged. Prints a line per trace and a summary last; exits 1 when it is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScheduling

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_scheduler.device import Gpu
from gpu_scheduler.distribution import Catalogue, GpuScheduling, Wanted
from gpu_scheduler.packing import lower_bound_s
from gpu_scheduler.simulate import Entry, VirtualHost, random_trace, virtual_gpus

DEVICES = 8
WORKERS = 8
TESTS = 200
SEEDS = (1, 2, 3)
MOST = 1.05
"""Times the lower bound."""
_SHUTDOWN = -1


@dataclass(eq=False)
class VirtualWorker:
    """A worker of xdist on the virtual host: runs what it is sent, one test after another."""

    host: VirtualHost
    trace: Sequence[Entry]
    gateway: Any
    done: Callable[[VirtualWorker, int], None]
    shutting_down: bool = False
    _queue: list[int] = field(default_factory=list)
    _busy: bool = False

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        """What the scheduler sends."""
        self._queue += indices
        self._go_on()

    def shutdown(self) -> None:
        """The last thing that it sends."""
        self.shutting_down = True
        self._queue.append(_SHUTDOWN)
        self._go_on()

    def _go_on(self) -> None:
        # The test after the next one must be known, and be it that there is none.
        if not self._busy and len(self._queue) > 1:
            self._busy = True
            self.host.at(self.host.now_s, self._run)

    def _run(self) -> None:
        index = self._queue.pop(0)
        if index == len(self.trace):  # a rest
            self._ended(index, ())
            return
        entry = self.trace[index]

        def granted(devices: tuple[Gpu, ...]) -> None:
            end_s = self.host.now_s + entry.duration_s
            self.host.at(end_s, partial(self._ended, index, devices))

        self.host.ask(entry.request(str(index)), granted)

    def _ended(self, index: int, devices: tuple[Gpu, ...]) -> None:
        self._busy = False
        self.host.release(devices)
        self.done(self, index)
        self._go_on()


def makespan_s(trace: Sequence[Entry], scheduling: Any, host: VirtualHost) -> float:  # noqa: ANN401 (xdist's protocol)
    """Plays a trace by a scheduler of xdist's protocol; returns when the last test ended."""
    tests = tuple(f"test_{index}" for index in range(len(trace)))
    wanted = tuple(Wanted(devices=e.count, group=t) for e, t in zip(trace, tests, strict=True))
    ended: dict[int, float] = {}

    def done(worker: VirtualWorker, index: int) -> None:
        if index < len(trace):
            ended[index] = host.now_s
        scheduling.mark_test_complete(worker, index, 0)

    for number in range(WORKERS):
        worker = VirtualWorker(host, trace, SimpleNamespace(id=f"gw{number}"), done)
        scheduling.add_node(worker)
        if isinstance(scheduling, GpuScheduling):
            scheduling.learn(worker, Catalogue(pid=number, tests=tests, wanted=wanted))
        scheduling.add_node_collection(worker, list(tests))
    scheduling.schedule()
    host.run()
    assert len(ended) == len(trace), "a test was never run"
    return max(ended.values())


def config() -> pytest.Config:
    """What schedulers read of pytest's configuration."""
    values = {"tx": ["popen"] * WORKERS, "maxschedchunk": None}
    made = SimpleNamespace(getvalue=values.get, getoption=values.get)
    return cast("pytest.Config", made)


def by_devices(trace: Sequence[Entry], durations: Mapping[str, float]) -> float:
    """The makespan of `--dist gpu`, in seconds."""
    host = VirtualHost(virtual_gpus(DEVICES))
    return makespan_s(trace, GpuScheduling(WORKERS, config(), lambda _: DEVICES, durations), host)


def by_load(trace: Sequence[Entry]) -> float:
    """The makespan of `--dist load`, whose tests wait for their leases, in seconds."""
    log = Producer("load", enabled=False)
    return makespan_s(trace, LoadScheduling(config(), log), VirtualHost(virtual_gpus(DEVICES)))


def measure(seeds: Sequence[int] = SEEDS) -> tuple[list[str], bool]:
    """Plays one trace per seed.

    Returns:
        A line per trace, and whether all of them keep the bound.
    """
    lines, kept = [], True
    for seed in seeds:
        trace = random_trace(seed, TESTS)
        recorded = {f"test_{index}": entry.duration_s for index, entry in enumerate(trace)}
        bound_s = lower_bound_s([(each.count, each.duration_s) for each in trace], DEVICES)
        ratio = by_devices(trace, recorded) / bound_s
        first = by_devices(trace, {}) / bound_s
        load = by_load(trace) / bound_s
        kept &= ratio <= MOST
        lines.append(
            f"seed {seed}: lower bound {bound_s:.0f} s; --dist gpu {ratio:.3f} times that "
            f"(first run {first:.3f}), --dist load with leases {load:.3f}"
        )
    return lines, kept


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one trace instead of three")
    lines, kept = measure(SEEDS[:1] if parser.parse_args().quick else SEEDS)
    print("\n".join(lines))
    verdict = "kept" if kept else "MISSED"
    print(f"makespan: at most {MOST} times the lower bound on each of {len(lines)}: {verdict}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
