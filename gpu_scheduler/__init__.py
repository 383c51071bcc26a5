"""Leases on GPUs, or on CPU cores where there are none, that hold across tests, users and crashes.

with gpu_scheduler.lease(2, kind="cuda", test="test_x", wait_s=600) as held:
    subprocess.run(command, env=os.environ | held.environment)
"""

from gpu_scheduler.device import CoreSlot, Device, Gpu, GpuProcess
from gpu_scheduler.errors import (
    GpuSchedulerError,
    LeaseTimeout,
    LockFolderError,
    Unsatisfiable,
    VisibilityError,
)
from gpu_scheduler.host import core_slots
from gpu_scheduler.nvml import Inventory, inventory
from gpu_scheduler.owner import Owner
from gpu_scheduler.placement import Kind, Refusal
from gpu_scheduler.scheduler import Lease, lease
from gpu_scheduler.visibility import affinity, environment_for, visible

__all__ = [
    "CoreSlot",
    "Device",
    "Gpu",
    "GpuProcess",
    "GpuSchedulerError",
    "Inventory",
    "Kind",
    "Lease",
    "LeaseTimeout",
    "LockFolderError",
    "Owner",
    "Refusal",
    "Unsatisfiable",
    "VisibilityError",
    "affinity",
    "core_slots",
    "environment_for",
    "inventory",
    "lease",
    "visible",
]
