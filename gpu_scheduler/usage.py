"""What a test had of its devices, as properties of it in JUnit XML."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.device import Device
from gpu_scheduler.peaks import MemoryPeak

WAIT = "gpu_wait_s"
DEVICES = "gpu_uuids"
PEAKS = "gpu_peak_memory_bytes"
"""The peak of each device, in the order of `DEVICES`; `unknown` where the driver does not say."""

Property = tuple[str, object]


def granted(devices: Iterable[Device], wait_s: float) -> list[Property]:
    """Returns what is known once the devices are there."""
    return [(WAIT, round(wait_s, 3)), (DEVICES, ",".join(device.id for device in devices))]


def used(peak: MemoryPeak) -> Property:
    """Returns what is known when the test has ended."""
    seen = ("unknown" if each is None else str(each) for each in peak.peak_bytes.values())
    return PEAKS, ",".join(seen)
