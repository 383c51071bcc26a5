"""Leases on GPUs, or on CPU cores where there are none, that hold across tests, users and crashes.

with gpu_scheduler.lease(2, kind="cuda", test="test_x", wait_s=600) as held:
    subprocess.run(command, env=os.environ | held.environment)
"""

from gpu_scheduler.acquisition import Blocked
from gpu_scheduler.device import CoreSlot, Device, Gpu, GpuProcess
from gpu_scheduler.errors import (
    CacheFolderError,
    GpuSchedulerError,
    LeaseTimeout,
    LockFolderError,
    QuarantineError,
    Unsatisfiable,
    VisibilityError,
)
from gpu_scheduler.host import core_slots
from gpu_scheduler.leaks import Leak
from gpu_scheduler.nvml import Inventory, inventory, readings
from gpu_scheduler.overview import DeviceStatus, ForeignProcess, Waiting, status
from gpu_scheduler.owner import Owner
from gpu_scheduler.peaks import MemoryPeak
from gpu_scheduler.placement import Kind, Refusal, Request, Topology
from gpu_scheduler.quarantines import Quarantine, lift_quarantine, quarantine
from gpu_scheduler.readings import Reading
from gpu_scheduler.scheduler import Lease, lease
from gpu_scheduler.survey import unsatisfiable
from gpu_scheduler.visibility import affinity, environment_for, visible

__all__ = [
    "Blocked",
    "CacheFolderError",
    "CoreSlot",
    "Device",
    "DeviceStatus",
    "ForeignProcess",
    "Gpu",
    "GpuProcess",
    "GpuSchedulerError",
    "Inventory",
    "Kind",
    "Leak",
    "Lease",
    "LeaseTimeout",
    "LockFolderError",
    "MemoryPeak",
    "Owner",
    "Quarantine",
    "QuarantineError",
    "Reading",
    "Refusal",
    "Request",
    "Topology",
    "Unsatisfiable",
    "VisibilityError",
    "Waiting",
    "affinity",
    "core_slots",
    "environment_for",
    "inventory",
    "lease",
    "lift_quarantine",
    "quarantine",
    "readings",
    "status",
    "unsatisfiable",
    "visible",
]
