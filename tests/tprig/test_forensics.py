"""Collectives are signs of life; what ranks were at is saved when there are none any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tprig import evidence, rings
from tprig.bundle import Writer
from tprig.forensics import RankWatch, Stall, receiver, state
from tprig.wire import WaitExpiredError

AT_ONCE = Stall(nobody_computes_s=0.0, slow_s=0.0)
CAPACITY = 4


def write_ring(runtime: Path, pid: int, entered: int, left: int) -> None:
    """The ring of a worker that has entered and left so many calls."""
    data = bytearray(rings.HEAD_BYTES + CAPACITY * rings.SLOT.size)
    rings.HEAD.pack_into(data, 0, rings.MAGIC, CAPACITY, entered, left, 3, 0)
    for number in range(max(entered - CAPACITY, 0), entered):
        place = rings.HEAD_BYTES + number % CAPACITY * rings.SLOT.size
        leave_ns = 20 + number if number < left else 0
        rings.SLOT.pack_into(data, place, number + 1, 7, 10 + number, leave_ns)
    (runtime / f"{pid}.ring").write_bytes(data)


class Silent:
    """A wire on which nothing comes; something happens at every wait."""

    def __init__(self, *happens: object) -> None:
        self.happens = list(happens)

    def receive(self, timeout_s: float, watched: object = ()) -> int:
        del timeout_s, watched
        if self.happens:
            step = self.happens.pop(0)
            if callable(step):
                step()
                raise WaitExpiredError("nothing came")
            return 42
        raise WaitExpiredError("nothing came")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits to be ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def watch(runtime: Path, stall: Stall = AT_ONCE, **pids: int) -> RankWatch:
    return RankWatch("r", {"host": 1, **pids}, runtime, stall)


def test_the_state_of_processes(child: subprocess.Popen[bytes]) -> None:
    assert state(os.getpid()) == "running"
    assert state(child.pid) == "running"
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    assert state(child.pid) == "stopped"
    child.kill()
    child.wait()
    assert state(child.pid) == "dead"


def test_without_ranks_messages_are_waited_for_as_ever() -> None:
    wire = Silent()
    assert receiver(wire, None) == wire.receive  # type: ignore[arg-type]


def test_a_message_that_comes_is_handed_on(tmp_path: Path) -> None:
    me = os.getpid()
    write_ring(tmp_path, me, 5, 5)
    ranks = watch(tmp_path, Stall(nobody_computes_s=9e9, slow_s=9e9), rank0=me)
    wire = Silent(lambda: None, "a message")
    assert receiver(wire, ranks)(9e9) == 42  # type: ignore[arg-type]


def test_ranks_that_are_all_in_a_collective_will_not_go_on(tmp_path: Path) -> None:
    me, parent = os.getpid(), os.getppid()
    write_ring(tmp_path, me, 5, 4)
    write_ring(tmp_path, parent, 5, 4)
    ranks = watch(tmp_path, rank0=me, rank1=parent)
    with pytest.raises(WaitExpiredError, match="no rank computes"):
        receiver(Silent(), ranks)(9e9)  # type: ignore[arg-type]


def test_a_rank_that_computes_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    me, parent = os.getpid(), os.getppid()
    write_ring(tmp_path, me, 5, 4)
    write_ring(tmp_path, parent, 5, 5)
    ranks = watch(tmp_path, Stall(nobody_computes_s=0.0, slow_s=9e9), rank0=me, rank1=parent)
    with pytest.raises(WaitExpiredError, match=r"no message and no collective for [0-9.]+ s$"):
        receiver(Silent(), ranks)(0.0)  # type: ignore[arg-type]


def test_a_rank_that_is_stopped_does_not_compute(
    tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    me = os.getpid()
    write_ring(tmp_path, me, 5, 4)
    write_ring(tmp_path, child.pid, 4, 4)
    ranks = watch(tmp_path, rank0=me, rank1=child.pid)
    ranks.look()
    assert not ranks.nobody_computes
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    assert ranks.nobody_computes


def test_collectives_are_signs_of_life_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.getpid()
    now_s = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])

    def goes_on() -> None:
        now_s[0] += 10.0
        write_ring(tmp_path, me, int(now_s[0]) + 1, int(now_s[0]))

    goes_on()
    ranks = watch(tmp_path, Stall(nobody_computes_s=15.0, slow_s=100.0), rank0=me)
    with pytest.raises(WaitExpiredError, match=r"no message for 100\.0 s, though collectives go"):
        receiver(Silent(*[goes_on] * 20), ranks)(30.0)  # type: ignore[arg-type]


def test_what_ranks_were_at_is_saved(tmp_path: Path) -> None:
    me = os.getpid()
    write_ring(tmp_path, me, 4, 4)
    ranks = watch(tmp_path, rank1=me)
    ranks.look()
    write_ring(tmp_path, me, 6, 5)
    writer = Writer(tmp_path / "bundle")
    ranks.save(writer)
    before, after, ring = ranks.records()
    assert isinstance(before, evidence.Progress)
    assert isinstance(after, evidence.Progress)
    assert (before.entered, after.entered, after.left) == (4, 6, 5)
    assert (after.rank, after.state, after.step) == (1, "running", 2)
    assert isinstance(ring, evidence.Ring)
    assert (ring.first, ring.operations) == (2, [7] * 4)
    assert ring.leave_ns[-1] is None
    assert (tmp_path / "bundle/runs/r/forensics.jsonl").read_bytes().count(b"\n") == 5


def test_a_rank_without_a_ring_says_nothing(tmp_path: Path) -> None:
    ranks = watch(tmp_path, rank0=os.getpid())
    ranks.look()
    assert ranks.records() == []
    assert not ranks.nobody_computes
