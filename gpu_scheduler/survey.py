"""What this process may use at all, and whether that could ever serve a request."""

from __future__ import annotations

import os

from gpu_scheduler import host, nvml
from gpu_scheduler.device import Device
from gpu_scheduler.errors import Unsatisfiable
from gpu_scheduler.placement import Kind, Request, capable
from gpu_scheduler.visibility import check_order, visible


def survey(kind: Kind) -> tuple[tuple[Device, ...], str | None]:
    """Returns what this process may use at all, and what is wrong with the rest.

    Raises:
        VisibilityError: The outer CUDA_VISIBLE_DEVICES is ambiguous on this host.
    """
    if kind == "cpu":
        return host.core_slots(), None
    inventory = nvml.inventory()
    check_order(inventory.devices, os.environ)
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = visible(inventory.devices, value)
    split = [gpu.uuid for gpu in shown if gpu.mig_enabled]
    notes = [
        *([inventory.reason] if inventory.reason else []),
        *([f"CUDA_VISIBLE_DEVICES={value!r} shows {len(shown)}"] if value is not None else []),
        *([f"split into MIG instances, which are not leased: {', '.join(split)}"] if split else []),
    ]
    return tuple(gpu for gpu in shown if not gpu.mig_enabled), "; ".join(notes) or None


def unsatisfiable(request: Request) -> Unsatisfiable | None:
    """Says, without waiting, why this host can never serve a request; `None` when it could.

    Raises:
        VisibilityError: The outer CUDA_VISIBLE_DEVICES is ambiguous on this host.
    """
    found = candidates(request)
    return found if isinstance(found, Unsatisfiable) else None


def candidates(request: Request) -> tuple[Device, ...] | Unsatisfiable:
    """Returns the devices worth waiting for, or why waiting would be in vain."""
    devices, note = survey(request.kind)
    able = capable(devices, request)
    if 1 <= request.count <= len(able):
        return able
    return Unsatisfiable(
        expected=str(request),
        found=f"{len(devices)} {request.kind} device(s) usable by this process, "
        f"{len(able)} of them large enough{f' ({note})' if note else ''}",
        rule="a lease holds at least one device and at most those that this process may use",
        remedy="ask for fewer devices or less memory, widen CUDA_VISIBLE_DEVICES or the affinity, "
        "or use a larger host",
    )
