"""What may befall a request on its way to a lease: kills, a full disk, a clock that is set."""

from __future__ import annotations

import errno
import os
import time

import pytest

from gpu_scheduler import acquisition
from gpu_scheduler.acquisition import Blocked
from gpu_scheduler.errors import LeaseTimeout, LockFolderError
from gpu_scheduler.locks import LockFolder
from gpu_scheduler.tickets import waiting
from tests.gpu_scheduler.children import PATIENCE_S, Child
from tests.gpu_scheduler.test_scheduler import gpus, holder, holder_after, standing, until

STOP_AT = """
import gpu_scheduler.acquisition, gpu_scheduler.locks, gpu_scheduler.tickets, gpu_scheduler.truth
def stop(*_, **__):
    say("there")
    wait()
gpu_scheduler.{where} = stop
lease(2, kind="cuda", test="killed", wait_s=60).release()
"""


@pytest.mark.parametrize(
    ("where", "when"),
    [
        ("acquisition.Acquisition._take", "at once"),  # with the gate
        ("tickets.Queue.join", "after a wait"),
        ("tickets.Place._write", "after a wait"),  # with a ticket that nobody can read
        ("tickets.Place.grant", "after a wait"),
        ("truth.examine", "at once"),
        ("truth.examine", "after a wait"),  # with a ticket that was granted
        ("locks.HeldLock.sign", "at once"),
        ("tickets.Place.hand_over", "after a wait"),
        ("locks.HeldLock.unlock", "at once"),  # in release
        ("locks.HeldLock.tell", "at once"),
    ],
)
def test_kill_anywhere_costs_nobody_a_device(folder: LockFolder, where: str, when: str) -> None:
    waits = when == "after a wait"
    with holder(1, "first") as first:
        first.hear()
        if not waits:
            first.kill()
        with Child(STOP_AT.format(where=where)) as child:
            if waits and where not in ("tickets.Queue.join", "tickets.Place._write"):
                until(lambda: any(waiting(folder.queue, "cuda")))
            if "grant" in where or "hand_over" in where or where == "truth.examine":
                first.kill()
            assert child.hear() == "there"
            child.kill()
        first.kill()
        gpus(2, wait_s=PATIENCE_S).release()
    assert not any(waiting(folder.queue, "cuda"))


def test_killed_waiter_holds_nobody_up(folder: LockFolder) -> None:
    with holder(1, "first") as first, holder_after(first, 2, "wide") as wide:
        until(lambda: standing(folder) == ["wide"])
        with holder(1, "narrow") as narrow:
            until(lambda: standing(folder) == ["wide", "narrow"])
            wide.kill()
            narrow.hear()
        assert standing(folder) == []


def test_killed_holder_wakes_the_waiter(folder: LockFolder) -> None:
    with holder(2, "first") as first, holder_after(first, 1, "second") as second:
        until(lambda: standing(folder) == ["second"])
        first.kill()
        second.hear()


def test_whoever_waits_is_told_when_its_position_changes(
    folder: LockFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it sleeps on, because whoever is ahead was granted all that there is."""
    monkeypatch.setattr(acquisition, "_TELL_S", 0.0)
    with holder(2, "first") as first, holder_after(first, 2, "second") as second:
        until(lambda: standing(folder) == ["second"])
        positions: list[int] = []

        def when_told(blocked: Blocked) -> None:
            if blocked.position not in positions:
                positions.append(blocked.position)
                (first if blocked.position == 2 else second).tell()

        gpus(1, wait_s=PATIENCE_S, on_wait=when_told).release()
        assert positions == [2, 1]


def test_full_disk_costs_records_but_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told who holds what, and nobody else gets it."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    gpus(2).release()  # the files are there
    monkeypatch.setattr(os, "pwrite", full)
    with gpus(2), pytest.raises(LeaseTimeout, match="whose record cannot be read"):
        gpus(1)
    gpus(2).release()


def test_full_disk_on_which_nothing_was_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(LockFolderError, match=r"No space left on device(.|\n)*make room"):
        gpus(1)


def test_clock_that_is_set_changes_no_wait(
    folder: LockFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deadlines, tickets and their order are on a clock that nobody sets."""
    with holder(2) as other:
        other.hear()

        def set_back(_: Blocked) -> None:
            monkeypatch.setattr(time, "time", lambda: 0.0)
            (ticket,) = waiting(folder.queue, "cuda")
            assert ticket.deadline_s is not None
            assert 0 < ticket.deadline_s - time.monotonic() <= PATIENCE_S
            other.tell()

        gpus(1, wait_s=PATIENCE_S, on_wait=set_back).release()
        assert other.hear() == "released"
