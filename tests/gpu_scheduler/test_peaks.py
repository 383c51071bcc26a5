from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from gpu_scheduler import host as this_host
from gpu_scheduler.nvml import inventory
from gpu_scheduler.peaks import MemoryPeak, used_bytes
from tests.fakes.nvml import GIB, FakeNvml
from tests.gpu_scheduler.children import PATIENCE_S

NEVER_S = 1e6


def looks(*seen: dict[str, int | None]) -> Callable[[], dict[str, int | None]]:
    left = iter(seen)
    return lambda: next(left)


def test_the_most_that_was_seen_of_each_device(host: FakeNvml) -> None:
    one, other = (gpu.uuid for gpu in host.gpus)
    look = looks({one: 1, other: 9}, {one: 5, other: 2}, {one: 3, other: 3, "GPU-x": 99})
    with MemoryPeak(inventory().devices, look=look, interval_s=NEVER_S) as peak:
        peak.note()
    assert peak.peak_bytes == {one: 5, other: 9}


def test_what_the_driver_does_not_say_is_unknown(host: FakeNvml) -> None:
    one, other = (gpu.uuid for gpu in host.gpus)
    with MemoryPeak(inventory().devices, look=looks({one: None}, {}), interval_s=NEVER_S) as peak:
        pass
    assert peak.peak_bytes == {one: None, other: None}


def test_it_looks_by_itself_from_time_to_time(host: FakeNvml) -> None:
    often = threading.Event()
    count = 0

    def look() -> dict[str, int | None]:
        nonlocal count
        count += 1
        if count == 5:
            often.set()
        return {host.gpus[0].uuid: count}

    before = threading.active_count()
    with MemoryPeak(inventory().devices[:1], look=look, interval_s=0.0) as peak:
        assert often.wait(PATIENCE_S)
    assert threading.active_count() == before
    assert peak.peak_bytes == {host.gpus[0].uuid: count}


def test_cores_have_no_memory_of_their_own_to_look_at() -> None:
    slots = this_host.core_slots()
    with MemoryPeak(slots, look=looks()) as peak:
        pass
    assert peak.peak_bytes == {slot.id: None for slot in slots}


def test_used_memory_by_uuid(host: FakeNvml) -> None:
    host.gpus[1].used_bytes = 2 * GIB
    assert used_bytes() == {host.gpus[0].uuid: 0, host.gpus[1].uuid: 2 * GIB}


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_no_child_is_forked_while_the_driver_is_asked(host: FakeNvml) -> None:
    """It would find the driver's library half-way, by a thread that it does not have."""
    order: list[str] = []
    asked, go_on = threading.Event(), threading.Event()

    def look() -> dict[str, int | None]:
        if threading.current_thread().name == "gpu-memory" and not asked.is_set():
            asked.set()
            go_on.wait(PATIENCE_S)
            order.append("answered")
        return {}

    with MemoryPeak(inventory().devices, look=look, interval_s=0.0):
        assert asked.wait(PATIENCE_S)
        threading.Timer(0.05, go_on.set).start()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        order.append("forked")
    assert os.waitpid(pid, 0)[1] == 0
    assert order == ["answered", "forked"]
