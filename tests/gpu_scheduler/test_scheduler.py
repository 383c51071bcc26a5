from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import msgspec
import psutil
import pynvml
import pytest

import gpu_scheduler
from gpu_scheduler import acquisition, tickets
from gpu_scheduler import host as this_host
from gpu_scheduler.acquisition import Blocked
from gpu_scheduler.device import Gpu
from gpu_scheduler.errors import LeaseTimeout, Unsatisfiable, VisibilityError
from gpu_scheduler.locks import HeldLock, LockFolder
from gpu_scheduler.placement import Topology
from gpu_scheduler.scheduler import Lease, lease
from gpu_scheduler.tickets import gate_name, waiting
from tests.fakes.nvml import GIB, FakeNvml, host_of
from tests.gpu_scheduler.children import PATIENCE_S, Child

HOLD = """
with lease({count}, kind="cuda", test="{test}", wait_s=60) as held:
    say(",".join(device.id for device in held.devices))
    wait()
say("released")
wait()
"""


def holder(count: int, test: str = "other") -> Child:
    return Child(HOLD.format(count=count, test=test))


def gpus(
    count: int,
    wait_s: float = 0,
    min_free_bytes: int | None = None,
    topology: Topology | None = None,
    on_wait: Callable[[Blocked], None] | None = None,
) -> Lease:
    return lease(
        count,
        kind="cuda",
        test="mine",
        wait_s=wait_s,
        min_free_bytes=min_free_bytes,
        topology=topology,
        on_wait=on_wait,
    )


def ids(held: Lease) -> list[str]:
    return [device.id for device in held.devices]


def until(condition: Callable[[], bool]) -> None:
    """Returns once a state is reached that no pipe reports; fails if it never is."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_lease_says_what_the_child_needs(host: FakeNvml) -> None:
    with gpus(2) as held:
        assert ids(held) == [gpu.uuid for gpu in host.gpus]
        assert held.environment == {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "TPRIG_LEASE_ID": held.id,
        }
        assert held.affinity is None
        assert 0 <= held.wait_s < PATIENCE_S


def test_leases_of_one_process_exclude_each_other(host: FakeNvml) -> None:
    first, second = gpus(1), gpus(1)
    assert ids(first) + ids(second) == [gpu.uuid for gpu in host.gpus]
    with pytest.raises(LeaseTimeout) as caught:
        gpus(1)
    assert [refusal.device_id for refusal in caught.value.refusals] == ids(first) + ids(second)
    first.release()
    first.release()
    with gpus(1) as third:
        assert ids(third) == ids(first)
    second.release()


def test_all_or_none(host: FakeNvml) -> None:
    with gpus(1):
        with pytest.raises(LeaseTimeout, match="1 of 2 usable"):
            gpus(2)
        with gpus(1) as rest:  # what the failed request had taken is free again
            assert ids(rest) == [host.gpus[1].uuid]


def test_lease_is_given_back_when_its_block_fails() -> None:
    with pytest.raises(ZeroDivisionError), gpus(2):
        _ = 1 / 0
    gpus(2).release()


def test_core_slots_are_leased_the_same_way() -> None:
    slots = this_host.core_slots()
    with lease(len(slots), kind="cpu", test="mine", wait_s=0) as held:
        assert held.affinity == frozenset(os.sched_getaffinity(0))
        assert held.environment == {"TPRIG_LEASE_ID": held.id}
        with pytest.raises(LeaseTimeout):
            lease(1, kind="cpu", test="mine", wait_s=0)


def test_kinds_do_not_queue_behind_each_other(folder: LockFolder) -> None:
    gate = folder.queue.try_lock(gate_name("cuda"))
    assert gate is not None
    lease(1, kind="cpu", test="mine", wait_s=0).release()


def test_killed_holder_loses_its_lease() -> None:
    with holder(2) as other:
        other.hear()
        with pytest.raises(LeaseTimeout):
            gpus(1)
        other.kill()
        gpus(2).release()


def test_timeout_names_holder_test_and_age() -> None:
    with holder(1, "suites/test_x.py::test_y") as other:
        device_id = other.hear()
        with pytest.raises(LeaseTimeout) as caught:
            gpus(2)
    (refusal,) = caught.value.refusals
    assert refusal.device_id == device_id
    assert refusal.holder is not None
    assert refusal.holder.pid == other.process.pid
    assert refusal.holder.test == "suites/test_x.py::test_y"
    assert f"pid {other.process.pid} (alive) for suites/test_x.py::test_y, " in str(caught.value)


def test_waiter_is_served_when_the_holder_ends(folder: LockFolder) -> None:
    with holder(2) as first:
        devices = first.hear()
        with holder(2) as second:
            until(lambda: any(waiting(folder.queue, "cuda")))
            first.tell()
            assert first.hear() == "released"
            assert second.hear() == devices


def test_wide_request_keeps_what_it_has_while_it_waits(host: FakeNvml, folder: LockFolder) -> None:
    """Narrow requests that keep coming cannot starve a wide one."""
    with holder(1) as narrow:
        narrow.hear()
        with holder(2, "wide") as wide:
            until(lambda: any(waiting(folder.queue, "cuda")))
            with pytest.raises(LeaseTimeout, match=r"position 2 .* behind .* for wide, ") as caught:
                gpus(1)
            leased, kept = caught.value.refusals
            assert (leased.leased, kept.leased) == (True, False)
            assert "kept for 2 device(s) of" in kept.reason
            assert kept.holder is not None
            assert kept.holder.test == "wide"
            narrow.tell()
            assert narrow.hear() == "released"
            # In the host's order, although the second was taken first.
            assert wide.hear() == ",".join(gpu.uuid for gpu in host.gpus)


def test_whoever_was_granted_all_stands_in_nobodys_queue(folder: LockFolder) -> None:
    """Its ticket outlives its wait, for others to sleep on; it is no longer one who waits."""
    with holder(1) as narrow:
        narrow.hear()
        with holder(2, "wide") as wide:
            until(lambda: any(waiting(folder.queue, "cuda")))
            narrow.tell()
            wide.hear()
            assert not any(waiting(folder.queue, "cuda"))
            with pytest.raises(LeaseTimeout) as caught:
                gpus(1, wait_s=0.05)
            assert "queue behind" not in str(caught.value)
            holders = [refusal.holder for refusal in caught.value.refusals]
            assert [each.test for each in holders if each] == ["wide", "wide"]


@pytest.mark.parametrize("end", [Child.tell, Child.kill])
def test_waiter_behind_one_that_was_granted_all_is_served_when_it_ends(
    folder: LockFolder, end: Callable[[Child], None]
) -> None:
    with holder(1) as narrow:
        narrow.hear()
        with holder(2, "wide") as wide:
            until(lambda: any(waiting(folder.queue, "cuda")))
            narrow.tell()
            wide.hear()
            gpus(1, wait_s=PATIENCE_S, on_wait=lambda _: end(wide)).release()
            gpus(2).release()


def test_request_that_gives_up_lets_the_next_one_in() -> None:
    with holder(1) as other:
        other.hear()
        with pytest.raises(LeaseTimeout, match="1 of 2 usable"):
            gpus(2, wait_s=0.05)
        gpus(1).release()


def test_foreign_process_is_named_and_gone_around(host: FakeNvml) -> None:
    host.gpus[0].processes = [(os.getppid(), 20 * GIB)]
    with gpus(1) as held:
        assert ids(held) == [host.gpus[1].uuid]
        with pytest.raises(LeaseTimeout) as caught:
            gpus(1)
    reasons = {refusal.device_id: refusal for refusal in caught.value.refusals}
    foreign = reasons[host.gpus[0].uuid]
    assert f"pid {os.getppid()}" in foreign.reason
    assert "20.0 GiB" in foreign.reason
    assert not foreign.leased


def test_too_little_free_memory_is_gone_around(host: FakeNvml) -> None:
    host.gpus[0].used_bytes = 120 * GIB
    with gpus(1, min_free_bytes=100 * GIB) as held:
        assert ids(held) == [host.gpus[1].uuid]
    with pytest.raises(LeaseTimeout, match=r"19\.5 GiB free of the 100\.0 GiB asked"):
        gpus(2, min_free_bytes=100 * GIB)


def test_nobody_queues_behind_a_wait_for_a_foreign_process(host: FakeNvml) -> None:
    host.gpus[0].processes = [(os.getppid(), GIB)]
    told: list[Blocked] = []

    def when_told(blocked: Blocked) -> None:
        told.append(blocked)
        gpus(1).release()  # from the one that others may use
        host.gpus[0].processes = []

    with gpus(2, wait_s=PATIENCE_S, on_wait=when_told) as held:
        assert [device.processes for device in held.devices] == [(), ()]
    assert len(told) == 1
    assert f"pid {os.getppid()}" in told[0].refusals[0].reason


def test_whoever_waits_is_told_for_whom() -> None:
    told: list[Blocked] = []
    with holder(2, "other") as other:
        other.hear()

        def when_told(blocked: Blocked) -> None:
            told.append(blocked)
            other.tell()

        gpus(1, wait_s=PATIENCE_S, on_wait=when_told).release()
        assert other.hear() == "released"
    (blocked,) = told
    assert blocked.position == 1
    holders = [refusal.holder for refusal in blocked.refusals]
    assert [each.pid for each in holders if each] == [other.process.pid] * 2


def test_what_the_callback_raises_ends_the_wait(folder: LockFolder) -> None:
    def refuse(_: Blocked) -> None:
        raise KeyboardInterrupt

    with holder(2) as other:
        other.hear()
        with pytest.raises(KeyboardInterrupt):
            gpus(1, wait_s=PATIENCE_S, on_wait=refuse)
    assert not any(waiting(folder.queue, "cuda"))
    gpus(2).release()


def test_device_that_vanishes_is_not_handed_out(host: FakeNvml) -> None:
    def lose(sessions: int) -> None:
        if sessions == 2:  # The first asks which there are, the second looks at what is locked.
            host.gpus[0].error = pynvml.NVML_ERROR_GPU_IS_LOST

    host.on_init = lose
    with gpus(1) as held:
        assert ids(held) == [host.gpus[1].uuid]


def test_outer_visibility_is_honoured(host: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", host.gpus[1].uuid)
    with gpus(1) as held:
        assert held.environment["CUDA_VISIBLE_DEVICES"] == "1"
    with pytest.raises(Unsatisfiable, match="CUDA_VISIBLE_DEVICES='GPU-1"):
        gpus(2, wait_s=3600)


def test_order_of_the_outer_visibility_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with gpus(2) as held:
        assert held.environment["CUDA_VISIBLE_DEVICES"] == "1,0"


def test_ambiguous_ordinals_are_refused(host: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    host.gpus[0].name = "NVIDIA T400"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(VisibilityError):
        gpus(1)


@pytest.mark.parametrize(
    ("count", "min_free_bytes"), [(3, None), (0, None), (-1, None), (1, 140 * GIB)]
)
def test_request_beyond_this_host_fails_at_once(count: int, min_free_bytes: int | None) -> None:
    with pytest.raises(Unsatisfiable):
        gpus(count, wait_s=3600, min_free_bytes=min_free_bytes)


def test_more_memory_than_the_host_has_fails_at_once() -> None:
    with pytest.raises(Unsatisfiable):
        lease(1, kind="cpu", test="mine", wait_s=3600, min_free_bytes=2**60)


def test_host_without_a_gpu_says_why(host: FakeNvml) -> None:
    host.init_error = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    with pytest.raises(Unsatisfiable, match="NVML Shared Library Not Found"):
        gpus(1, wait_s=3600)


def test_split_gpu_is_not_leased_as_a_whole(host: FakeNvml) -> None:
    host.gpus[0].mig = True
    with pytest.raises(Unsatisfiable, match="MIG"):
        gpus(2, wait_s=3600)
    with gpus(1) as held:
        assert ids(held) == [host.gpus[1].uuid]


def test_snapshots_are_those_of_the_grant(host: FakeNvml) -> None:
    def fill(sessions: int) -> None:
        host.gpus[0].used_bytes = sessions * GIB

    host.on_init = fill
    with gpus(1) as held:
        (device,) = held.devices
    assert isinstance(device, Gpu)
    assert device.memory_used_bytes == host.sessions * GIB


def test_quarantined_device_is_gone_around_and_said(host: FakeNvml) -> None:
    gpu_scheduler.quarantine(host.gpus[0].uuid, "leaked 3 GiB", 3600)
    with gpus(1) as held:
        assert ids(held) == [host.gpus[1].uuid]
    with pytest.raises(LeaseTimeout, match=r"in quarantine by .* leaked 3 GiB"):
        gpus(2)
    gpu_scheduler.lift_quarantine(host.gpus[0].uuid)
    gpus(2).release()


# --- the queue, with real processes ------------------------------------------------------------


def standing(folder: LockFolder) -> list[str]:
    found = sorted(waiting(folder.queue, "cuda"), key=lambda ticket: ticket.number)
    return [ticket.owner.test for ticket in found]


def test_first_come_is_first_served(folder: LockFolder) -> None:
    with holder(2, "first") as first, holder_after(first, 2, "second") as second:
        until(lambda: standing(folder) == ["second"])
        with holder(1, "third") as third:
            until(lambda: standing(folder) == ["second", "third"])
            first.tell()
            assert first.hear() == "released"
            second.hear()
            assert standing(folder) == ["third"]
            second.tell()
            third.hear()


def holder_after(first: Child, count: int, test: str) -> Child:
    """A holder that comes when the first one has got what it asked for."""
    first.hear()
    return holder(count, test)


def test_narrow_request_passes_a_wide_one_that_cannot_use_its_device(
    host: FakeNvml, folder: LockFolder
) -> None:
    """A GPU that is too small for the wide request is nobody's to keep."""
    host.gpus = host_of(3).gpus
    host.gpus[2].total_bytes = 24 * GIB
    with gpus(1) as first:
        assert ids(first) == [host.gpus[0].uuid]
        passed: list[str] = []

        def while_wide_waits(_: Blocked) -> None:
            with gpus(1) as narrow:
                passed.extend(ids(narrow))
            first.release()

        with gpus(2, wait_s=PATIENCE_S, min_free_bytes=40 * GIB, on_wait=while_wide_waits) as wide:
            assert ids(wide) == [host.gpus[0].uuid, host.gpus[1].uuid]
    assert passed == [host.gpus[2].uuid]


def test_linked_set_is_drained_while_others_use_the_rest(host: FakeNvml) -> None:
    host.gpus = host_of(4).gpus
    host.nvlinks = [(0, 1), (2, 3)]
    one, other = gpus(1), gpus(2)
    assert (ids(one), ids(other)) == ([host.gpus[0].uuid], [gpu.uuid for gpu in host.gpus[2:]])
    seen: list[str] = []

    def while_pair_waits(blocked: Blocked) -> None:
        kept = {refusal.device_id: refusal for refusal in blocked.refusals}
        assert "kept for" not in kept[host.gpus[0].uuid].reason
        other.release()
        with gpus(1) as narrow:  # not the one that is free beside the device it waits for
            seen.extend(ids(narrow))
            one.release()

    with gpus(2, wait_s=PATIENCE_S, topology="nvlink", on_wait=while_pair_waits) as pair:
        assert ids(pair) == [gpu.uuid for gpu in host.gpus[:2]]
    assert seen == [host.gpus[2].uuid]


def test_waiting_for_ever_is_waiting(folder: LockFolder) -> None:
    with holder(2, "first") as first:
        first.hear()
        gpus(1, wait_s=float("inf"), on_wait=lambda _: first.tell()).release()


def test_gate_that_stays_locked_is_told(
    folder: LockFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process that was stopped within it: nobody can know who is served next."""
    monkeypatch.setattr(acquisition, "_GATE_PATIENCE_S", 0.0)
    gate = folder.queue.try_lock(gate_name("cuda"))
    assert gate is not None
    with pytest.raises(LeaseTimeout, match="stayed locked"):
        gpus(1)
    gate.release()
    gpus(2).release()


def stop_outside_of_the_gate(child: Child, folder: LockFolder) -> None:
    gates: list[HeldLock | None] = []

    def enter() -> bool:
        gates.append(folder.queue.try_lock(gate_name("cuda")))
        return gates[-1] is not None

    until(enter)
    os.kill(child.process.pid, signal.SIGSTOP)
    until(lambda: psutil.Process(child.process.pid).status() == psutil.STATUS_STOPPED)
    gate = gates.pop()
    assert gate is not None
    gate.release()


def test_stopped_waiter_holds_nobody_up_for_longer_than_it_wanted_to_wait(
    folder: LockFolder,
) -> None:
    with holder(1, "first") as first, holder_after(first, 2, "wide") as wide:
        until(lambda: standing(folder) == ["wide"])
        stop_outside_of_the_gate(wide, folder)
        (ticket,) = waiting(folder.queue, "cuda")
        late = msgspec.structs.replace(ticket, deadline_s=0.0)
        name = tickets.slot_name("cuda", ticket.slot)
        folder.queue.write_file(name, "owner", msgspec.json.encode(late))
        gpus(1, wait_s=PATIENCE_S).release()


def test_request_keeps_its_place_when_the_driver_objects(
    host: FakeNvml, folder: LockFolder
) -> None:
    """What it was given turns out to be in use: it goes on waiting, and claims what is left."""
    with holder(2, "first") as first:
        first.hear()
        claims: list[tuple[bool, tuple[str, ...]]] = []

        def object_once(_sessions: int) -> None:
            ticket = tickets.read(folder.queue, "cuda", 0)
            if ticket is not None:
                claims.append((ticket.granted, ticket.claim.among))
                busy = ticket.granted and len(claims) < 9
                host.gpus[0].processes = [(os.getppid(), GIB)] if busy else []

        host.on_init = object_once
        gpus(2, wait_s=PATIENCE_S, on_wait=lambda _: first.tell()).release()
    # Examined, looked at again while it claims only the other, and examined again.
    assert claims[0][0]
    assert (False, (host.gpus[1].uuid,)) in claims
    assert claims[-1][0]
