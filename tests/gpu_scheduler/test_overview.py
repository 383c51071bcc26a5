from __future__ import annotations

import os

import gpu_scheduler
from gpu_scheduler.placement import Request
from tests.fakes.nvml import GIB, FakeNvml
from tests.gpu_scheduler.children import Child

HOLD = """
with lease(1, kind="cuda", test="other", wait_s=60) as held:
    say(held.devices[0].id)
    wait()
"""


def test_idle_host(host: FakeNvml) -> None:
    found = gpu_scheduler.status()
    assert [each.device.id for each in found] == [gpu.uuid for gpu in host.gpus]
    for each in found:
        assert (each.holder, each.quarantine, each.foreign, each.queue) == (None, None, (), ())


def test_holder_is_named_until_it_dies(host: FakeNvml) -> None:
    with Child(HOLD) as child:
        device_id = child.hear()
        by_id = {each.device.id: each for each in gpu_scheduler.status()}
        holder = by_id.pop(device_id).holder
        assert holder is not None
        assert (holder.pid, holder.test) == (child.process.pid, "other")
        assert [each.holder for each in by_id.values()] == [None]
    assert [each.holder for each in gpu_scheduler.status()] == [None, None]


def test_processes_without_a_lease_are_named(host: FakeNvml) -> None:
    host.gpus[1].processes = [(os.getppid(), 3 * GIB)]
    quiet, busy = gpu_scheduler.status()
    assert quiet.foreign == ()
    (foreign,) = busy.foreign
    assert foreign.process.used_bytes == 3 * GIB
    assert f"pid {os.getppid()}" in foreign.description


def test_quarantine_is_told(host: FakeNvml) -> None:
    made = gpu_scheduler.quarantine(host.gpus[0].uuid, "leaked", 60)
    assert [each.quarantine for each in gpu_scheduler.status()] == [made, None]


def test_core_slots_have_a_status() -> None:
    slots = gpu_scheduler.core_slots()
    with gpu_scheduler.lease(1, kind="cpu", test="mine", wait_s=0) as held:
        holders = {each.device.id: each.holder for each in gpu_scheduler.status("cpu")}
    assert len(holders) == len(slots)
    assert [id_ for id_, holder in holders.items() if holder] == [held.devices[0].id]


def test_what_this_host_can_never_serve_is_said_without_waiting() -> None:
    request = Request(count=2, kind="cuda", test="mine")
    with gpu_scheduler.lease(2, kind="cuda", test="mine", wait_s=0):
        assert gpu_scheduler.unsatisfiable(request) is None
    found = gpu_scheduler.unsatisfiable(Request(count=3, kind="cuda", test="mine"))
    assert isinstance(found, gpu_scheduler.Unsatisfiable)
    assert "2 cuda device(s) usable" in found.found


def test_who_waits_is_told_with_the_place_in_the_queue(host: FakeNvml) -> None:
    told: list[tuple[int, int, str, int]] = []
    with gpu_scheduler.lease(1, kind="cuda", test="first", wait_s=0) as first:

        def look(_: gpu_scheduler.Blocked) -> None:
            for each in gpu_scheduler.status():
                told.extend((w.position, w.count, w.owner.test, w.owner.pid) for w in each.queue)
            first.release()

        gpu_scheduler.lease(2, kind="cuda", test="second", wait_s=60, on_wait=look).release()
    assert told == [(1, 2, "second", os.getpid())] * 2
    assert [each.queue for each in gpu_scheduler.status()] == [(), ()]
