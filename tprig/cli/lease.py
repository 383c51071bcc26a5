"""`tprig lease -n 2 -- CMD`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import gpu_scheduler
from gpu_scheduler.command import run_leased
from tprig.report.text import one_line

NO_LEASE = 125
"""Exit code when the lease itself fails, as of `timeout` and `docker run`."""
NOT_FOUND = 127
NOT_EXECUTABLE = 126
"""What a shell returns for a command that is not there, or cannot be run."""
_GIB = 1024**3


def run(
    command: Sequence[str],
    *,
    count: int,
    kind: gpu_scheduler.Kind,
    min_free_gib: float | None,
    topology: gpu_scheduler.Topology | None,
    wait_s: float,
) -> int:
    """Lease, run, and return the command's exit code."""
    try:
        held = gpu_scheduler.lease(
            count,
            kind=kind,
            test="tprig lease",
            wait_s=wait_s,
            min_free_bytes=None if min_free_gib is None else math.ceil(min_free_gib * _GIB),
            topology=topology,
            on_wait=_tell,
        )
    except gpu_scheduler.GpuSchedulerError as error:
        print(f"tprig lease: no lease\n{error}", file=sys.stderr)
        return NO_LEASE
    with held:
        try:
            return run_leased(held, command)
        except OSError as error:
            print(f"tprig lease: {one_line(command[0])}: {error.strerror}", file=sys.stderr)
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


def _tell(blocked: gpu_scheduler.Blocked) -> None:
    """Say, while it lasts, who is waited for."""
    print(
        f"tprig lease: waiting for {blocked.request}, at position {blocked.position} of the queue",
        *(f"  {refusal}" for refusal in blocked.refusals),
        sep="\n",
        file=sys.stderr,
        flush=True,
    )
