"""What else two engines on one host would fight over: ports to listen on, and cache folders.

They are leased along with devices: locked until the lease ends, and never waited for, since there
is always another one.
"""

from __future__ import annotations

import hashlib
import itertools
import socket
from pathlib import Path

from gpu_scheduler.errors import CacheFolderError, LeaseTimeout
from gpu_scheduler.locks import HeldLock, LockFolder

PORTS_FIRST, PORTS_END = 20_000, 32_000
"""Below the kernel's ephemeral ports (32768 and up), which any client may be given."""
BLOCK = 16
"""Ports are locked by blocks; vLLM looks for a free one from VLLM_PORT upwards."""


def lease_ports(folder: LockFolder, count: int) -> tuple[range, tuple[HeldLock, ...]]:
    """Locks consecutive ports on which nobody listens.

    Args:
        folder: Of the locks.
        count: How many; rounded up to whole blocks.

    Raises:
        LeaseTimeout: There are none left.
    """
    size = -(-count // BLOCK) * BLOCK
    for first in range(PORTS_FIRST, PORTS_END - size + 1, BLOCK):
        locks = _lock_blocks(folder, range(first, first + size, BLOCK))
        if locks and all(map(_is_free, range(first, first + size))):
            return range(first, first + size), locks
        for lock in locks:
            lock.release()
    raise LeaseTimeout(
        expected=f"{count} consecutive free ports between {PORTS_FIRST} and {PORTS_END}",
        found="each such block is leased, or somebody listens in it",
        rule="each lease has ports of its own",
        remedy="end other leases, or what listens on those ports",
    )


def lease_cache(folder: LockFolder, root: Path) -> tuple[Path, HeldLock]:
    """Locks one of the numbered folders below a root, the first one that is free.

    What an earlier holder cached in it is kept, so that a later one starts warm.

    Raises:
        CacheFolderError: It cannot be made.
    """
    key = hashlib.sha256(str(root.absolute()).encode()).hexdigest()[:16]
    number, lock = next(
        (number, lock)
        for number in itertools.count()
        if (lock := folder.try_lock(f"cache-{key}-{number}")) is not None
    )
    path = root.absolute() / str(number)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except BaseException as error:
        lock.release()
        if isinstance(error, OSError):
            raise CacheFolderError(
                expected=f"a folder {path}",
                found=f"it cannot be made: {error.strerror}",
                rule="each lease has a cache of its own below one folder that may be written",
                remedy="name another folder, or make room",
            ) from error
        raise
    return path, lock


def port_environment(ports: range) -> dict[str, str]:
    """Returns the variable by which vLLM finds its ports."""
    return {"VLLM_PORT": str(ports.start)}


def cache_environment(cache: Path) -> dict[str, str]:
    """Returns the variables by which vLLM, Triton and Inductor find their caches."""
    return {
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
    }


def _lock_blocks(folder: LockFolder, firsts: range) -> tuple[HeldLock, ...]:
    """Locks all of these blocks or none."""
    locks: list[HeldLock] = []
    for first in firsts:
        lock = folder.try_lock(f"ports-{first}")
        if lock is None:
            for each in locks:
                each.release()
            return ()
        locks.append(lock)
    return tuple(locks)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
