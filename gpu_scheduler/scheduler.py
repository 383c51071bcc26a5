"""Leases: devices that belong to one holder until it lets go or dies."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from gpu_scheduler import companions, orphans
from gpu_scheduler.acquisition import Acquisition, Blocked, Grant
from gpu_scheduler.leaks import Leak, await_returned
from gpu_scheduler.locks import LockFolder, release_all
from gpu_scheduler.owner import LEASE_ID_VARIABLE
from gpu_scheduler.placement import Kind, Request, Topology
from gpu_scheduler.visibility import affinity, environment_for


class Lease:
    """Devices held until `release`, the end of a `with` block or the death of this process.

    Attributes:
        id: What a child carries in its environment, or else in the name of an open descriptor, so
            that it is known by whose lease it is there (`orphans`).
        devices: What is held, as it was when granted, in the order of the outer
            CUDA_VISIBLE_DEVICES or of the host.
        environment: Variables that a child needs to see exactly these devices; a child that is not
            given them sees whatever this process sees.
        affinity: Cores for `os.sched_setaffinity` in a child; `None` when GPUs are leased.
        wait_s: How long the lease was waited for.
        ports: What `add_ports` has leased along.
        cache: What `add_cache` has leased along.
    """

    def __init__(self, lease_id: str, grant: Grant) -> None:
        self.id = lease_id
        self.devices = grant.devices
        self.environment = environment_for(grant.devices) | {LEASE_ID_VARIABLE: lease_id}
        self.affinity = affinity(grant.devices)
        self.wait_s = grant.wait_s
        self.ports = range(0)
        self.cache: Path | None = None
        self._locks = list(grant.locks)
        self._mark = os.getpid(), orphans.mark(lease_id)

    def add_ports(self, count: int) -> range:
        """Leases consecutive ports along; a child is told of the first one as VLLM_PORT.

        Raises:
            LeaseTimeout: There are none left.
        """
        self.ports, locks = companions.lease_ports(LockFolder.default(), count)
        self._locks += locks
        self.environment |= companions.port_environment(self.ports)
        return self.ports

    def add_cache(self, root: Path) -> Path:
        """Leases one of the numbered folders below `root` along, as the cache of its children.

        Raises:
            CacheFolderError: It cannot be made.
        """
        self.cache, lock = companions.lease_cache(LockFolder.default(), root)
        self._locks.append(lock)
        self.environment |= companions.cache_environment(self.cache)
        return self.cache

    def leaks(self, within_s: float) -> tuple[Leak, ...]:
        """Waits until the leased GPUs are as they were when granted, once their users have ended.

        Args:
            within_s: How long the driver may take to give memory back.

        Returns:
            Those that are not; a lease of cores leaks nothing.
        """
        return await_returned(self.devices, within_s)

    def release(self) -> None:
        """Lets go of everything; does nothing the second time, or in a forked child."""
        release_all(self._locks)
        pid, mark = self._mark
        if mark is not None and pid == os.getpid():
            self._mark = pid, None
            os.close(mark)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def lease(
    count: int,
    *,
    kind: Kind,
    test: str,
    wait_s: float,
    min_free_bytes: int | None = None,
    topology: Topology | None = None,
    on_wait: Callable[[Blocked], None] | None = None,
) -> Lease:
    """Takes devices for one holder, all at once or none; use it in a `with` statement.

    Requests are served first come first served. One that must wait has all that it waits for kept
    free by the others; a later one may take what no earlier one could use.

    Args:
        count: How many devices.
        kind: `cuda` for GPUs, `cpu` for cores of this process's affinity.
        test: Whom the lease is for, shown to those who wait for it.
        wait_s: Longest wait in seconds; 0 asks once.
        min_free_bytes: Free memory that each device must have: a GPU's own, or a core's even share
            of the host's. `None` asks for none.
        topology: `nvlink` for GPUs that all reach each other over NVLink; they are preferred
            anyhow. It means nothing to cores.
        on_wait: Called in this thread when the lease must be waited for, and again when what it
            waits for has changed, at most once a second. What it raises ends the wait.

    Raises:
        Unsatisfiable: This host can never grant it.
        LeaseTimeout: The devices were not free in time; says who held each.
        LockFolderError: The lock folder cannot be used.
        VisibilityError: The outer CUDA_VISIBLE_DEVICES is ambiguous on this host.
    """
    request = Request(
        count=count, kind=kind, test=test, min_free_bytes=min_free_bytes, topology=topology
    )
    lease_id = uuid.uuid4().hex
    grant = Acquisition(request, lease_id=lease_id, wait_s=wait_s, on_wait=on_wait).run()
    return Lease(lease_id, grant)
