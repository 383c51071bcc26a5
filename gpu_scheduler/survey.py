"""What this process may use at all, and whether that could ever serve a request."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_scheduler import host, nvml
from gpu_scheduler.device import Device, Gpu
from gpu_scheduler.errors import Unsatisfiable
from gpu_scheduler.placement import Kind, Request, capable, choose
from gpu_scheduler.visibility import check_order, leasable, visible

_FRESH_S = 1.0
"""GPUs come and go by an administrator's hand: which there are is asked this often at most."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The devices that this process may use, and what is wrong with the rest."""

    devices: tuple[Device, ...]
    note: str | None


def survey(kind: Kind) -> Survey:
    """Asks anew what this process may use at all.

    Raises:
        VisibilityError: The outer CUDA_VISIBLE_DEVICES is ambiguous on this host.
    """
    if kind == "cpu":
        return Survey(host.core_slots(), None)
    inventory = nvml.inventory()
    check_order(inventory.devices, os.environ)
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = visible(inventory.devices, value)
    devices = leasable(shown)
    empty = [gpu.uuid for gpu in shown if gpu.mig_enabled and not gpu.instances]
    notes = [
        *([inventory.reason] if inventory.reason else []),
        *([f"CUDA_VISIBLE_DEVICES={value!r} shows {len(shown)}"] if value is not None else []),
        *([f"split into MIG instances, of which there are none: {', '.join(empty)}"] * bool(empty)),
    ]
    return Survey(devices, "; ".join(notes) or None)


class _Recent:
    """The last survey of each kind, as long as it is fresh and nothing that decides it changed."""

    def __init__(self) -> None:
        self._found: dict[Kind, tuple[float, object, Survey]] = {}

    def get(self, kind: Kind) -> Survey:
        key = _decides(kind)
        found = self._found.get(kind)
        now_s = time.monotonic()
        if found is None or found[1] != key or now_s - found[0] > _FRESH_S:
            found = self._found[kind] = (now_s, key, survey(kind))
        return found[2]


def _decides(kind: Kind) -> object:
    """Returns what a survey depends on besides the hardware, to be compared."""
    if kind == "cpu":
        return os.sched_getaffinity(0)
    environment = (os.environ.get(f"CUDA_{name}") for name in ("VISIBLE_DEVICES", "DEVICE_ORDER"))
    return nvml.backend(), *environment


recent = _Recent().get
"""Returns a survey that may be `_FRESH_S` old; usage in its snapshots may have changed since."""


def refresh(devices: Sequence[Device], request: Request) -> dict[str, Device | str]:
    """Reads usage again, as far as it matters to a request.

    Returns:
        By id the new snapshot, or why there is none.
    """
    gpus = [device for device in devices if isinstance(device, Gpu)]
    if gpus:
        return dict(nvml.refresh(gpus))
    if request.min_free_bytes is None:
        return {device.id: device for device in devices}
    now = {slot.id: slot for slot in host.core_slots()}
    return {device.id: now.get(device.id, "no core of this process any more") for device in devices}


def unsatisfiable(request: Request) -> Unsatisfiable | None:
    """Says, without waiting, why this host can never serve a request; `None` when it could.

    Raises:
        VisibilityError: The outer CUDA_VISIBLE_DEVICES is ambiguous on this host.
    """
    found = candidates(request, survey(request.kind))
    return found if isinstance(found, Unsatisfiable) else None


def candidates(request: Request, found: Survey) -> tuple[Device, ...] | Unsatisfiable:
    """Returns the devices worth waiting for, or why waiting would be in vain."""
    able = capable(found.devices, request)
    if request.count >= 1 and choose(able, request) is not None:
        return able
    note = f" ({found.note})" if found.note else ""
    linked = ""
    if 1 <= request.count <= len(able):
        linked = f", but no {request.count} of those are all linked to each other over NVLink"
    return Unsatisfiable(
        expected=str(request),
        found=f"{len(found.devices)} {request.kind} device(s) usable by this process, "
        f"{len(able)} of them large enough{linked}{note}",
        rule="a lease holds at least one device and at most those that this process may use; one "
        "that holds several holds no MIG instance",
        remedy="ask for fewer devices or less memory, widen CUDA_VISIBLE_DEVICES or the affinity, "
        "or use a larger host",
    )
