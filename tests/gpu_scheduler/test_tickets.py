from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_scheduler import tickets
from gpu_scheduler.locks import HeldLock, LockFolder
from gpu_scheduler.owner import Owner
from gpu_scheduler.placement import Claim
from gpu_scheduler.tickets import Place, Queue, gate_name, read, slot_name, stands, waiting
from tests.gpu_scheduler.children import Child

CLAIM = Claim(count=1, among=("GPU-1", "GPU-2"))
JOIN = """
from gpu_scheduler.placement import Claim
from gpu_scheduler.tickets import Queue, gate_name
folder = LockFolder.default()
gate = folder.try_lock(gate_name("cuda"))
claim = Claim(count=1, among=("GPU-1", "GPU-2"))
place = Queue(folder, "cuda", gate).join(1, claim, float("inf"), Owner.current("theirs"))
gate.release()
say(place.ticket.number)
wait()
"""

Enter = Callable[[], Queue]


@pytest.fixture
def enter(folder: LockFolder) -> Iterator[Enter]:
    """The queue under the gate, which each call opens anew."""
    gates: list[HeldLock] = []

    def enter() -> Queue:
        while gates:
            gates.pop().release()
        gate = folder.try_lock(gate_name("cuda"))
        assert gate is not None
        gates.append(gate)
        return Queue(folder, "cuda", gate)

    yield enter
    while gates:
        gates.pop().release()


def join(queue: Queue, test: str = "t", deadline_s: float = math.inf) -> Place:
    return queue.join(1, CLAIM, deadline_s, Owner.current(test))


def ahead(queue: Queue, place: Place | None = None) -> list[str]:
    return [ticket.owner.test for ticket in queue.ahead(place)]


def test_first_come_stands_first(enter: Enter) -> None:
    places = [join(enter(), name) for name in "abc"]
    assert ahead(enter()) == ["a", "b", "c"]
    assert [ahead(enter(), place) for place in places] == [[], ["a"], ["a", "b"]]


def test_place_that_was_left_is_used_again_behind_the_others(enter: Enter) -> None:
    first, _ = join(enter(), "a"), join(enter(), "b")
    first.leave()
    again = join(enter(), "c")
    assert again.ticket.slot == first.ticket.slot
    assert ahead(enter()) == ["b", "c"]


def test_ticket_of_a_killed_process_is_void(enter: Enter, folder: LockFolder) -> None:
    with Child(JOIN) as child:
        child.hear()
        place = join(enter(), "mine")
        (theirs,) = enter().ahead(place)
        assert stands(folder, "cuda", theirs) == theirs
        assert not enter().bury()
        child.kill()
        assert stands(folder, "cuda", theirs) is None
        assert ahead(enter(), place) == ["theirs"]  # its record is still there
        queue = enter()
        assert queue.bury()
        assert ahead(queue, place) == []
        assert ahead(queue) == ["mine"]


def test_ticket_that_changed_hands_does_not_stand(enter: Enter, folder: LockFolder) -> None:
    first = join(enter(), "a")
    join(enter(), "b")
    first.leave()
    assert stands(folder, "cuda", first.ticket) is None
    join(enter(), "c")
    assert stands(folder, "cuda", first.ticket) is None


def test_claim_is_said_anew(enter: Enter, folder: LockFolder) -> None:
    place = join(enter())
    other = Claim(count=1, among=("GPU-2",))
    place.claim(other)
    (ticket,) = enter().ahead(None)
    assert ticket.claim == other
    assert [each.claim for each in waiting(folder, "cuda")] == [other]


def test_grant_of_all_that_is_claimed_keeps_its_ticket(enter: Enter, folder: LockFolder) -> None:
    """Who could use nothing else sleeps until it goes, which is when the devices do."""
    place = join(enter(), "a", deadline_s=1.0)
    place.grant(CLAIM.among)
    (ticket,) = enter().ahead(None)  # long past the deadline that it had while it waited
    assert (ticket.granted, ticket.claim) == (True, Claim(count=2, among=CLAIM.among))
    assert not list(waiting(folder, "cuda")), "it waits no more"
    (lock,) = place.hand_over()
    assert stands(folder, "cuda", ticket) == ticket
    lock.release()
    assert stands(folder, "cuda", ticket) is None
    assert ahead(enter()) == []


def test_grant_of_less_than_is_claimed_leaves_the_rest_to_those_behind(enter: Enter) -> None:
    place = join(enter())
    place.grant(CLAIM.among[:1])
    (ticket,) = enter().ahead(None)
    assert (ticket.granted, ticket.claim.count) == (False, 0)
    assert place.hand_over() == ()
    assert ahead(enter()) == []


def test_what_was_granted_and_then_refused_waits_again(enter: Enter, folder: LockFolder) -> None:
    place = join(enter(), deadline_s=math.inf)
    before = place.ticket
    place.grant(CLAIM.among)
    place.claim(CLAIM)
    assert place.ticket == before
    assert [ticket.granted for ticket in waiting(folder, "cuda")] == [False]


def test_place_of_one_who_died_while_it_claimed_nothing_is_used_again(enter: Enter) -> None:
    with Child(JOIN.replace("say(", "place.grant(()); say(")) as child:
        child.hear()
        child.kill()
    assert join(enter(), "mine").ticket.slot == 0


def test_ticket_long_past_its_deadline_keeps_nothing(
    enter: Enter, folder: LockFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner must be stopped (SIGSTOP, a debugger): it cannot hold everybody up."""
    place = join(enter(), "stopped", deadline_s=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    assert ahead(enter()) == ["stopped"]
    assert stands(folder, "cuda", place.ticket) is not None
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0 + tickets._GRACE_S)
    assert ahead(enter()) == []
    assert stands(folder, "cuda", place.ticket) is None


def test_queue_that_emptied_costs_nothing_to_look_at(
    enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [join(enter()) for _ in range(5)]
    for place in places:
        place.leave()
    assert ahead(enter()) == []
    queue = enter()
    monkeypatch.setattr(tickets, "read", lambda *_: pytest.fail("a slot was read"))
    assert ahead(queue) == []


def test_gate_file_that_a_cleaner_took_hides_no_ticket(
    enter: Enter, folder: LockFolder, lock_path: Path
) -> None:
    places = [join(enter(), name) for name in "ab"]
    (lock_path / f"{gate_name('cuda')}.lock").unlink()
    assert ahead(enter()) == ["a", "b"]
    assert len(places) == 2


@pytest.mark.parametrize("note", [b"garbage", b"-7", b"99999999999999"])
def test_gate_file_of_garbage_keeps_nobody_busy(
    enter: Enter, lock_path: Path, note: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tickets, "_MOST_SLOTS", 8)
    ahead(enter())
    (lock_path / f"{gate_name('cuda')}.lock").write_bytes(note)
    assert ahead(enter()) == []
    join(enter(), "a")
    assert ahead(enter()) == ["a"]


@pytest.mark.parametrize("garbage", [b"\0", b"{}", b'{"slot":0}', b"[" * 9000])
def test_garbage_is_no_ticket(
    enter: Enter, folder: LockFolder, lock_path: Path, garbage: bytes
) -> None:
    join(enter(), "a").leave()
    (lock_path / f"{slot_name('cuda', 0)}.owner").write_bytes(garbage)
    assert read(folder, "cuda", 0) is None
    assert ahead(enter()) == []
    join(enter(), "b")
    assert ahead(enter()) == ["b"]


def test_record_copied_to_another_place_is_no_ticket(
    enter: Enter, folder: LockFolder, lock_path: Path
) -> None:
    place = join(enter(), "a")
    copied = (lock_path / f"{slot_name('cuda', 0)}.owner").read_bytes()
    (lock_path / f"{slot_name('cuda', 1)}.owner").write_bytes(copied)
    assert [ticket.slot for ticket in waiting(folder, "cuda")] == [0]
    place.leave()
