"""What a worker writes into its ring is what the client reads out of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest
from tprig_inject import ring as theirs
from tprig_inject.log import Log, Quick
from tprig_inject.ring import Ring

from tprig import rings

T = TypeVar("T")


def told(kind: int) -> dict[str, Any]:
    return {"kind": str(kind)}


def logged(
    path: Path, calls: int, capacity: int = 8, look: Callable[[], T] | None = None
) -> tuple[Log, T | None]:
    """So many calls, of two kinds in turn, and what is seen from within the last of them."""
    log = Log(Ring(path, capacity), lambda _: None)
    log.begin_step(4)

    def tell(args: tuple[Any, ...], kwargs: dict[str, Any], key: Hashable, frame: FrameType) -> int:
        del kwargs
        number = log.find(key, frame)
        return log.tell(key, told(args[0])) if number is None else number

    def call(kind: int, number: int) -> T | None:
        del kind
        return look() if look is not None and number == calls - 1 else None

    around = log.around(call, Quick("call", key=lambda args, _: args[0]), tell)
    seen = [around(number % 2, number) for number in range(calls)]
    return log, seen[-1] if seen else None


def snapshots(path: Path) -> tuple[rings.Snapshot | None, rings.Head | None]:
    return rings.read(path), rings.read_head(path)


def test_both_ends_know_the_same_format() -> None:
    assert rings.MAGIC == theirs.MAGIC
    assert rings.HEAD_BYTES == theirs.HEAD_WORDS * 8
    assert rings.SLOT.size == theirs.SLOT_WORDS * 8
    assert theirs.CAPACITY <= rings.CAPACITY_MOST


@pytest.mark.parametrize(("calls", "first"), [(1, 0), (5, 0), (8, 0), (13, 5)])
@pytest.mark.parametrize("pending", [False, True])
def test_the_last_calls_are_read_back(
    tmp_path: Path, calls: int, first: int, *, pending: bool
) -> None:
    log, within = logged(tmp_path / "r", calls, look=lambda: snapshots(tmp_path / "r"))
    snapshot, head = within if pending and within else snapshots(tmp_path / "r")
    assert snapshot is not None
    assert snapshot.head == rings.Head(entered=calls, left=calls - pending, step=4)
    assert snapshot.head == head
    assert snapshot.head.inside == pending
    assert snapshot.first == first
    assert snapshot.operations == tuple(number % 2 for number in range(first, calls))
    assert [left is None for left in snapshot.leave_ns] == (
        [False] * (calls - first - 1) + [pending]
    )
    assert list(snapshot.enter_ns) == sorted(snapshot.enter_ns)
    assert log.entered == calls


def test_a_ring_without_calls(tmp_path: Path) -> None:
    logged(tmp_path / "r", 0)
    snapshot = rings.read(tmp_path / "r")
    assert snapshot is not None
    assert (snapshot.first, snapshot.operations) == (0, ())


def test_a_slot_that_was_overwritten_ends_what_is_told(tmp_path: Path) -> None:
    """As when the worker goes on while its ring is read."""
    logged(tmp_path / "r", 6)
    data = bytearray((tmp_path / "r").read_bytes())
    rings.SLOT.pack_into(data, rings.HEAD_BYTES + 2 * rings.SLOT.size, 11, 0, 1, 1)
    (tmp_path / "r").write_bytes(data)
    snapshot = rings.read(tmp_path / "r")
    assert snapshot is not None
    assert snapshot.first == 3
    assert len(snapshot.operations) == 3


@pytest.mark.parametrize("data", [b"", b"x" * 40, b"\0" * 4096])
def test_what_is_no_ring_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "r").write_bytes(data)
    assert rings.read(tmp_path / "r") is None
    assert rings.read_head(tmp_path / "r") is None
    assert rings.read(tmp_path / "none") is None
    assert rings.read_head(tmp_path / "none") is None


def test_a_ring_that_was_cut_is_none(tmp_path: Path) -> None:
    logged(tmp_path / "r", 3)
    data = (tmp_path / "r").read_bytes()
    (tmp_path / "r").write_bytes(data[:-8])
    assert rings.read(tmp_path / "r") is None
