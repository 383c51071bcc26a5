"""Replays a trace of requests in virtual time, through the placement and queue policy of leases.

    python -m gpu_scheduler.simulate TRACE [--devices 8] [--links switch|pairs|none]
    python -m gpu_scheduler.simulate --seed 1 [--requests 200] [--widths 1,2,4,8]
    ... --workers 8 [--order packed|trace]

A trace is JSON lines, one request each: {"count": 2, "duration_s": 31.5}, and where it matters
"arrive_s" (0), "min_free_gib" and "topology". Without `--workers` each request asks for its lease
when it arrives. With it, requests are tests that so many workers take one by one: as `--dist gpu`
hands them out, or in the order of the trace. Prints makespan, waits by width, utilisation, and the
lower bound of the makespan.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec

from gpu_scheduler.device import Gpu
from gpu_scheduler.packing import Job, lower_bound_s, ordered, startable
from gpu_scheduler.placement import Claim, Request, Topology, capable, choose, claim, reserved

Links = Literal["switch", "pairs", "none"]
Order = Literal["packed", "trace"]
_GIB = 1024**3
_MEMORY_BYTES = 80 * _GIB
_MEDIAN_S = 30.0
_SIGMA = 1.0
"""Of the logarithm of a random duration: the longest of 200 is about ten times the mean."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request of a trace."""

    count: Annotated[int, msgspec.Meta(ge=1)]
    duration_s: Annotated[float, msgspec.Meta(ge=0)]
    arrive_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    min_free_gib: Annotated[float, msgspec.Meta(gt=0)] | None = None
    topology: Topology | None = None

    def request(self, test: str) -> Request:
        """What is asked of the leases."""
        floor = None if self.min_free_gib is None else math.ceil(self.min_free_gib * _GIB)
        return Request(
            count=self.count,
            kind="cuda",
            test=test,
            min_free_bytes=floor,
            topology=self.topology,
        )


class TraceError(Exception):
    """A trace cannot be read, or holds what these devices can never serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request, once it has ended; times are seconds from the start."""

    entry: Entry
    asked_s: float
    granted_s: float
    ended_s: float
    devices: tuple[str, ...]


@dataclass(kw_only=True)
class _Ticket:
    request: Request
    granted: Callable[[tuple[Gpu, ...]], None]
    claim: Claim | None = None


@dataclass
class VirtualHost:
    """Devices, the queue for them, and a clock that jumps from event to event."""

    devices: Sequence[Gpu]
    now_s: float = 0.0
    _free: set[str] = field(init=False)
    _queue: list[_Ticket] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _ties: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._free = {device.id for device in self.devices}

    @property
    def free(self) -> int:
        """How many devices nobody holds."""
        return len(self._free)

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """Calls at a time, after what was to be called then already."""
        heapq.heappush(self._events, (time_s, next(self._ties), call))

    def run(self) -> None:
        """Lets time pass until nothing is left to happen."""
        while self._events:
            self.now_s, _, call = heapq.heappop(self._events)
            call()

    def ask(self, request: Request, granted: Callable[[tuple[Gpu, ...]], None]) -> None:
        """Queues a request; `granted` is called, perhaps at once, with its devices."""
        self._queue.append(_Ticket(request=request, granted=granted))
        self._serve()

    def release(self, devices: Sequence[Gpu]) -> None:
        """Gives devices back."""
        self._free |= {device.id for device in devices}
        self._serve()

    def _serve(self) -> None:
        """What each waiter does when it is woken, first come first: `acquisition.Acquisition`."""
        claims: list[Claim] = []
        for ticket in tuple(self._queue):
            usable = capable(self.devices, ticket.request)
            kept = reserved(claims, self._free)
            free = [each for each in usable if each.id in self._free and each.id not in kept]
            chosen = choose(free, ticket.request)
            if chosen is None:
                ticket.claim = claim(usable, self._free, ticket.request, ticket.claim)
                claims.append(ticket.claim)
                continue
            self._queue.remove(ticket)
            taken = tuple(each for each in self.devices if each in chosen)
            self._free -= {each.id for each in taken}
            self.at(self.now_s, functools.partial(ticket.granted, taken))


def virtual_gpus(count: int, links: Links = "switch") -> tuple[Gpu, ...]:
    """Returns equal GPUs: all linked by a switch, linked in pairs, or not at all."""
    ids = [f"GPU-{index:08x}" for index in range(count)]

    def peers(index: int) -> frozenset[str]:
        near = {"switch": ids, "pairs": ids[index // 2 * 2 : index // 2 * 2 + 2], "none": []}
        return frozenset(near[links]) - {ids[index]}

    return tuple(
        Gpu(
            uuid=id_,
            index=index,
            name="virtual",
            pci_bus_id=f"00000000:{index + 1:02X}:00.0",
            memory_total_bytes=_MEMORY_BYTES,
            memory_used_bytes=0,
            memory_reserved_bytes=0,
            driver_version=None,
            cuda_driver_version=None,
            processes=(),
            mig_enabled=None,
            nvlink_peers=peers(index),
        )
        for index, id_ in enumerate(ids)
    )


def random_trace(
    seed: int,
    requests: int = 200,
    widths: Sequence[int] = (1, 2, 4, 8),
    median_s: float = _MEDIAN_S,
    sigma: float = _SIGMA,
) -> list[Entry]:
    """Returns requests of random widths, each as likely, and log-normal durations."""
    rng = random.Random(seed)
    return [
        Entry(count=rng.choice(widths), duration_s=rng.lognormvariate(math.log(median_s), sigma))
        for _ in range(requests)
    ]


def replay(
    trace: Sequence[Entry],
    devices: Sequence[Gpu],
    *,
    workers: int | None = None,
    order: Order = "packed",
) -> list[Served]:
    """Plays a trace; returns what became of each request, in the order in which they ended.

    Args:
        trace: The requests.
        devices: What serves them.
        workers: How many requests can be under way at once, waiting for devices or holding them;
            `None` for as many as there are.
        order: In which workers take requests.

    Raises:
        TraceError: A request can never be served.
    """
    host = VirtualHost(devices)
    served: list[Served] = []
    crew = _Crew(host, trace, served, workers, order)
    for index, entry in enumerate(trace):
        if choose(capable(devices, entry.request("")), entry.request("")) is None:
            raise TraceError(
                f"request {index}: {entry.request('it')} can never be served by {len(devices)} "
                "devices; give it more of them (--devices), or other links (--links)"
            )
        host.at(entry.arrive_s, functools.partial(crew.arrive, index))
    host.run()
    return served


class _Crew:
    """Workers that take requests as they arrive."""

    def __init__(
        self,
        host: VirtualHost,
        trace: Sequence[Entry],
        served: list[Served],
        workers: int | None,
        order: Order,
    ) -> None:
        self._host = host
        self._trace = trace
        self._served = served
        self._idle = len(trace) if workers is None else workers
        self._packed = order == "packed" and workers is not None
        self._pending: tuple[Job, ...] = ()

    def arrive(self, index: int) -> None:
        entry = self._trace[index]
        job = Job(key=index, width=entry.count, duration_s=entry.duration_s)
        self._pending = (*self._pending, job)
        if self._packed:
            self._pending = ordered(self._pending)
        # All that arrive at one time are there before the first of them is taken.
        self._host.at(self._host.now_s, self._take)

    def _take(self) -> None:
        if self._packed:
            jobs = startable(self._pending, self._host.free, self._idle)
        else:
            jobs = self._pending[: self._idle]
        self._idle -= len(jobs)
        self._pending = tuple(job for job in self._pending if job not in jobs)
        for job in jobs:
            self._ask(job.key)

    def _ask(self, index: int) -> None:
        asked_s = self._host.now_s
        entry = self._trace[index]

        def granted(devices: tuple[Gpu, ...]) -> None:
            granted_s = self._host.now_s
            self._host.at(granted_s + entry.duration_s, lambda: ended(devices, granted_s))

        def ended(devices: tuple[Gpu, ...], granted_s: float) -> None:
            self._served.append(
                Served(
                    entry=entry,
                    asked_s=asked_s,
                    granted_s=granted_s,
                    ended_s=self._host.now_s,
                    devices=tuple(device.id for device in devices),
                )
            )
            self._idle += 1
            self._host.release(devices)
            self._host.at(self._host.now_s, self._take)

        self._host.ask(entry.request(str(index)), granted)


# --- command line ------------------------------------------------------------------------------


def read_trace(path: Path) -> list[Entry]:
    """Reads JSON lines.

    Raises:
        TraceError: Says which line is not a request, or why there is none.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    trace = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                trace.append(msgspec.json.decode(line, type=Entry))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise TraceError(f"{path}, line {number}: expected a request: {error}") from None
    if not trace:
        raise TraceError(f"{path} holds no request")
    return trace


def summary(served: Sequence[Served], devices: int) -> Iterator[str]:
    """Yields the lines that are printed."""
    makespan_s = max(each.ended_s for each in served)
    bound_s = lower_bound_s([(s.entry.count, s.entry.duration_s) for s in served], devices)
    area_s = sum(each.entry.count * each.entry.duration_s for each in served)
    yield f"{'width':>5} {'requests':>8} {'mean wait':>11} {'median':>11} {'longest':>11}"
    for width in sorted({each.entry.count for each in served}):
        waits_s = [s.granted_s - s.asked_s for s in served if s.entry.count == width]
        figures = (statistics.mean(waits_s), statistics.median(waits_s), max(waits_s))
        yield f"{width:5} {len(waits_s):8} " + " ".join(f"{each:9.1f} s" for each in figures)
    ratio = makespan_s / bound_s if bound_s else 1.0
    used = area_s / (devices * makespan_s) if makespan_s else 1.0
    yield f"makespan     {makespan_s:9.1f} s"
    yield f"lower bound  {bound_s:9.1f} s, of which the makespan is {ratio:.3f} times"
    yield f"utilisation  {used:9.1%} of {devices} devices"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or 2 for a trace that cannot be played."""
    options = _parser().parse_args(arguments)
    if (options.trace is None) == (options.seed is None):
        print("simulate: expected a trace or --seed, and not both", file=sys.stderr)
        return 2
    try:
        trace = (
            read_trace(options.trace)
            if options.trace is not None
            else random_trace(options.seed, options.requests, options.widths)
        )
        devices = virtual_gpus(options.devices, options.links)
        served = replay(trace, devices, workers=options.workers, order=options.order)
    except TraceError as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    print("\n".join(summary(served, len(devices))))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_scheduler.simulate",
        description=(__doc__ or "").partition("\n")[0],
    )
    add = parser.add_argument
    add("trace", type=Path, nargs="?", help="JSON lines, one request each")
    add("--seed", type=int, help="make a random trace")
    add("--requests", type=_positive, default=200, help="of a random trace (default: 200)")
    add("--widths", type=_widths, default=(1, 2, 4, 8), help="of a random trace (1,2,4,8)")
    add("--devices", type=_positive, default=8, help="default: 8")
    add("--links", choices=get_args(Links), default="switch", help="NVLink (default: switch)")
    add("--workers", type=_positive, help="tests that are under way at once")
    add("--order", choices=get_args(Order), default="packed", help="in which workers take them")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, found {text}")
    return int(text)


def _widths(text: str) -> tuple[int, ...]:
    return tuple(_positive(each) for each in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
