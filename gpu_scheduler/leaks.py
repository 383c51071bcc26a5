"""Whether what was leased is given back as it was: memory that stays in use after its users ended.

The driver returns a process's memory some time after the process is gone, so that it is waited for
up to a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_scheduler import host
from gpu_scheduler.device import Device, Gpu, GpuProcess
from gpu_scheduler.nvml import refresh
from gpu_scheduler.placement import foreign, gib, whole_gpus

SLACK_BYTES = 64 * 1024**2
"""Usage of an idle GPU moves by a few MiB; a CUDA context alone takes hundreds."""
_POLL_FIRST_S = 0.02
_POLL_MOST_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A device whose memory was not given back."""

    device_id: str
    baseline_bytes: int | None
    """In use when the lease was granted."""
    used_bytes: int | None
    """In use at the deadline."""
    processes: tuple[GpuProcess, ...]
    """Who still computes on it, as far as the driver tells."""
    waited_s: float
    error: str | None = None
    """Why the driver no longer says anything about it."""

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.device_id}: what it holds cannot be known: {self.error}"
        users = ", ".join(host.describe_process(each.pid) for each in self.processes)
        return (
            f"{self.device_id}: {_size(self.used_bytes)} in use {self.waited_s:.1f} s after its "
            f"users ended, {_size(self.baseline_bytes)} when it was leased; "
            f"{f'held by {users}' if users else 'no process shows'}"
        )


def await_returned(devices: Sequence[Device], within_s: float) -> tuple[Leak, ...]:
    """Waits until GPUs are as they were in these snapshots.

    Args:
        devices: Snapshots from before they were used; core slots hold nothing.
        within_s: How long memory may take to come back.

    Returns:
        Those that are not, in the given order; nothing as soon as all are.
    """
    left = whole_gpus(devices)
    began_s = time.monotonic()
    poll_s = _POLL_FIRST_S
    while left:
        found = refresh(left)
        waited_s = time.monotonic() - began_s
        leaks = tuple(
            leak for gpu in left if (leak := _leak(gpu, found[gpu.uuid], waited_s)) is not None
        )
        if not leaks or waited_s >= within_s:
            return leaks
        time.sleep(min(poll_s, max(0.0, within_s - waited_s)))
        poll_s = min(2 * poll_s, _POLL_MOST_S)
    return ()


def _leak(before: Gpu, after: Gpu | str, waited_s: float) -> Leak | None:
    baseline = before.memory_used_bytes
    if isinstance(after, str):
        return Leak(
            device_id=before.id,
            baseline_bytes=baseline,
            used_bytes=None,
            processes=(),
            waited_s=waited_s,
            error=after,
        )
    used = after.memory_used_bytes
    grown = baseline is not None and used is not None and used > baseline + SLACK_BYTES
    processes = foreign(after)
    if not grown and not processes:
        return None
    return Leak(
        device_id=before.id,
        baseline_bytes=baseline,
        used_bytes=used,
        processes=processes,
        waited_s=waited_s,
    )


def _size(size_bytes: int | None) -> str:
    return "an unknown amount" if size_bytes is None else gib(size_bytes)
