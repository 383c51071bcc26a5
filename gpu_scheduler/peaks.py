"""The most memory that leased GPUs were seen to use, by looking at them from time to time.

NVML keeps no peak of its own without accounting mode, which only root may turn on. What is used and
given back between two looks is missed: the figure is a lower bound of the true peak.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from gpu_scheduler.device import Device, Gpu
from gpu_scheduler.nvml import inventory

_INTERVAL_S = 0.5

_looking = threading.Lock()
"""Held while the driver is asked: a child forked in that moment would find NVML half-way."""

os.register_at_fork(
    before=_looking.acquire,
    after_in_parent=_looking.release,
    after_in_child=_looking.release,
)


def used_bytes() -> dict[str, int | None]:
    """Returns the memory that is used now on each GPU of this host, by UUID."""
    return {gpu.uuid: gpu.memory_used_bytes for gpu in inventory().devices}


class MemoryPeak:
    """Watches devices from the start of a `with` block to its end.

    Attributes:
        peak_bytes: The most memory seen in use, by device id; `None` where it was never seen, as on
            the CPU, whose memory is not a core's own.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        look: Callable[[], dict[str, int | None]] = used_bytes,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self.peak_bytes: dict[str, int | None] = {device.id: None for device in devices}
        self._look = look
        self._interval_s = interval_s
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        if any(isinstance(device, Gpu) for device in devices):
            self._thread = threading.Thread(target=self._watch, name="gpu-memory", daemon=True)

    def _watch(self) -> None:
        while not self._done.wait(self._interval_s):
            self.note()

    def begin_anew(self) -> None:
        """Forgets what was seen, and looks once: from now on somebody else uses the devices."""
        self.peak_bytes = dict.fromkeys(self.peak_bytes)
        self.note()

    def note(self) -> None:
        """Looks once, if there is a GPU to look at."""
        if self._thread is None:
            return
        with _looking:
            seen = self._look()
        peaks = self.peak_bytes
        for device_id, peak in peaks.items():
            used = seen.get(device_id)
            if used is not None:
                peaks[device_id] = used if peak is None else max(peak, used)

    def __enter__(self) -> Self:
        if self._thread is not None:
            self.note()
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join()
            self.note()
