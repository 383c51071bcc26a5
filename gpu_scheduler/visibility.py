"""CUDA_VISIBLE_DEVICES: what the outside lets this process see, and what a lease lets a child see.

The rules are CUDA's (CUDA C++ Programming Guide, "CUDA Environment Variables"): a comma-separated
list of ordinals or of UUIDs, which may be cut short as long as they stay unique; the first entry
that names no device hides itself and all that follow; a device named twice makes none visible.
What the guide leaves open is as driver 580.159 does it: the first entry decides whether all are
ordinals or UUIDs; an ordinal ends at its last digit and what follows is ignored; UUIDs are compared
by their hexadecimal digits alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpu_scheduler.device import CoreSlot, Device, Gpu
from gpu_scheduler.errors import VisibilityError

_ORDINAL = re.compile(r"\s*([+-]?)0*([0-9]{1,9})(?![0-9])", re.ASCII)
_UUID_DIGITS = 32


def visible(gpus: Sequence[Gpu], value: str | None) -> tuple[Gpu, ...]:
    """Returns the GPUs that CUDA would show a process, in CUDA's order.

    Args:
        gpus: All GPUs of the host, in PCI bus order.
        value: CUDA_VISIBLE_DEVICES; `None` when it is not set. Ordinals are read in PCI bus order
            (see `check_order`); one so large that CUDA would cut it to 32 bits names no device.

    Returns:
        Whole GPUs and, where MIG instances are named, those. An ordinal or a UUID of a GPU that is
        split names its first instance. CUDA itself shows a process one instance at most, the first
        that is named; here all are told, since each can be given to a process of its own.
    """
    if value is None:
        return tuple(gpus)
    named = _by_ordinal
    if value.startswith(("GPU-", "MIG-")):
        named = _by_uuid if value.startswith("GPU-") else _instance
    chosen: list[Gpu] = []
    for entry in value.split(","):
        gpu = named(gpus, entry)
        if gpu is None:
            break
        if gpu in chosen:
            return ()
        chosen.append(gpu)
    return tuple(chosen)


def leasable(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Returns what of these can be leased: a GPU that is split only as its MIG instances."""
    return tuple(
        device for gpu in gpus for device in (gpu.instances if gpu.mig_enabled else (gpu,))
    )


def check_order(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> None:
    """Refuses outer ordinals whose meaning NVML cannot know.

    By default CUDA counts the fastest GPU first and leaves the order of the rest unspecified. On a
    host of equal GPUs that is the PCI order; on a mixed one `0` may be any of them, and a guess
    could land on a GPU that was meant for somebody else.

    Raises:
        VisibilityError: The outer CUDA_VISIBLE_DEVICES holds ordinals, the host mixes models of
            GPU, and CUDA_DEVICE_ORDER is not PCI_BUS_ID.
    """
    value = environment.get("CUDA_VISIBLE_DEVICES", "")
    order = environment.get("CUDA_DEVICE_ORDER")
    models = sorted({gpu.name for gpu in gpus})
    if order == "PCI_BUS_ID" or len(models) < 2 or not _ORDINAL.match(value):
        return
    raise VisibilityError(
        expected="CUDA_DEVICE_ORDER=PCI_BUS_ID beside ordinals in CUDA_VISIBLE_DEVICES",
        found=f"CUDA_VISIBLE_DEVICES={value!r} with CUDA_DEVICE_ORDER={order!r} on {models}",
        rule="on a host of different GPUs, CUDA's default order of ordinals is not defined",
        remedy="export CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by UUID",
    )


def environment_for(devices: Sequence[Device]) -> dict[str, str]:
    """Returns the variables that make a child see exactly the leased GPUs.

    Args:
        devices: What a lease holds; the child's ordinals 0, 1, ... follow this order.

    Returns:
        CUDA_DEVICE_ORDER and CUDA_VISIBLE_DEVICES; nothing for core slots (see `affinity`).
    """
    gpus = [device for device in devices if isinstance(device, Gpu)]
    if not gpus:
        return {}
    names = ",".join(gpu.cuda_name for gpu in gpus)
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": names}


def affinity(devices: Sequence[Device]) -> frozenset[int] | None:
    """Returns the cores for a child's `os.sched_setaffinity`; `None` when GPUs are leased."""
    cores = frozenset(device.core for device in devices if isinstance(device, CoreSlot))
    return cores or None


def _by_ordinal(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    match = _ORDINAL.match(entry)
    if match is None or (match[1] == "-" and int(match[2]) != 0):
        return None
    found = next((gpu for gpu in gpus if gpu.index == int(match[2])), None)
    return None if found is None else _shown(found)


def _by_uuid(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    digits, rest = _uuid_digits(entry)
    cut_short = len(digits) < _UUID_DIGITS
    if not entry.startswith("GPU-") or entry == "GPU-" or (rest and cut_short):
        return None
    matches = [gpu for gpu in gpus if _uuid_digits(gpu.uuid)[0].startswith(digits[:_UUID_DIGITS])]
    return _shown(matches[0]) if len(matches) == 1 else None


def _shown(gpu: Gpu) -> Gpu:
    """Returns what CUDA shows of a GPU that is named itself."""
    return gpu.instances[0] if gpu.mig_enabled and gpu.instances else gpu


def _instance(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    """Finds a MIG instance by its whole UUID, as NVML writes it, or a unique start of it."""
    instances = [each for gpu in gpus for each in gpu.instances]
    if not entry.startswith("MIG-") or entry == "MIG-":
        return None
    exact = [each for each in instances if each.uuid.lower() == entry.lower()]
    matches = exact or [each for each in instances if each.uuid.lower().startswith(entry.lower())]
    return matches[0] if len(matches) == 1 else None


def _uuid_digits(uuid: str) -> tuple[str, str]:
    """Splits `GPU-<UUID>...` into the UUID's hexadecimal digits and what follows them."""
    body = uuid.removeprefix("GPU-")
    rest = body.lstrip("0123456789abcdefABCDEF-")
    return body[: len(body) - len(rest)].replace("-", "").lower(), rest
