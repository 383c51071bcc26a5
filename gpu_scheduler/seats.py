"""What a leased process and its children see: the leased devices, and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gpu_scheduler.scheduler import Lease


@contextmanager
def seated(lease: Lease) -> Iterator[None]:
    """Lets this process, and what it starts meanwhile, see exactly the leased devices.

    CUDA reads CUDA_VISIBLE_DEVICES once, when a process first uses it. When that happens within the
    block, the variables stay as they are after it: they are what this process sees from then on,
    and its next lease is so sought among these devices alone.
    """
    outer = {name: os.environ.get(name) for name in lease.environment}
    cores = os.sched_getaffinity(0)
    os.environ.update(lease.environment)
    if lease.affinity is not None:
        os.sched_setaffinity(0, lease.affinity)
    try:
        yield
    finally:
        if lease.affinity is not None:
            os.sched_setaffinity(0, cores)
        if not _cuda_is_initialised():
            _restore(outer)


def _restore(outer: Mapping[str, str | None]) -> None:
    for name, value in outer.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _cuda_is_initialised() -> bool:
    """Whether PyTorch uses CUDA in this process; asks it only if somebody has imported it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())
