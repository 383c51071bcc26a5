"""Under what a run is measured: foreign load on its cores, or its GPUs' own account."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import psutil

import gpu_scheduler
from tprig import evidence

READ_EVERY_S = 0.25
"""Rare beside a step: the readings are taken by another process than the engine's."""


@dataclass(frozen=True)
class _Used:
    """Seconds of work since some beginning."""

    at_s: float
    cores_s: float
    """By everybody, on the watched cores."""
    ours_s: float
    """By the engines' processes and by this one, wherever they ran."""


class Watch:
    """What surrounds one run; as a context manager it watches for the length of it.

    Args:
        cores: those that the engines may run on; None where they run on GPUs.
        pids: the engines' processes.
        gpus: UUIDs of the GPUs that they run on.

    Attributes:
        foreign_load: cores' worth of work that was not ours, once it is over; None without cores.
        readings: of the GPUs, in order of time.
    """

    def __init__(
        self, cores: Collection[int] | None, pids: Iterable[int], gpus: Sequence[str]
    ) -> None:
        self.foreign_load: float | None = None
        self.readings: list[evidence.GpuReading] = []
        self._cores = cores
        self._pids = [os.getpid(), *pids]
        self._gpus = list(gpus)
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._began_ns = time.monotonic_ns()
        self._before: _Used | None = None

    def __enter__(self) -> Self:
        self._began_ns = time.monotonic_ns()
        if self._cores is not None:
            self._before = _used(self._cores, self._pids)
        if self._gpus:
            self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._gpus:
            self._reader.join()
        if self._cores is not None and self._before is not None:
            self.foreign_load = foreign(self._before, _used(self._cores, self._pids))

    def _read(self) -> None:
        while True:
            at_ns = time.monotonic_ns() - self._began_ns
            self.readings += [_reading(each, at_ns) for each in gpu_scheduler.readings(self._gpus)]
            if self._over.wait(READ_EVERY_S):
                return


def foreign(before: _Used, after: _Used) -> float:
    """Cores' worth of work between two moments that was not ours.

    Ours may in part have run elsewhere, so it is never less than nothing.
    """
    elapsed_s = after.at_s - before.at_s
    theirs_s = (after.cores_s - before.cores_s) - (after.ours_s - before.ours_s)
    return max(0.0, theirs_s / elapsed_s) if elapsed_s > 0 else 0.0


def _used(cores: Collection[int], pids: Iterable[int]) -> _Used:
    each = psutil.cpu_times(percpu=True)
    busy_s = sum(_busy_s(each[core]) for core in cores if core < len(each))
    return _Used(time.monotonic(), busy_s, sum(map(_process_s, pids)))


def _busy_s(times: object) -> float:
    """All that a core did, but for what was none; the guests' part is in the user's already."""
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(float(getattr(times, name, 0.0)) for name in names)


def _process_s(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _reading(reading: gpu_scheduler.Reading, at_ns: int) -> evidence.GpuReading:
    return evidence.GpuReading(
        uuid=reading.uuid,
        at_ns=at_ns,
        sm_clock_mhz=reading.sm_clock_mhz,
        memory_clock_mhz=reading.memory_clock_mhz,
        temperature_c=reading.temperature_c,
        power_mw=reading.power_mw,
        throttle=None if reading.throttle is None else list(reading.throttle),
        processes=reading.processes,
    )
