"""A call is told by who asked for it, also where what came last is expected again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from ctypes import c_void_p
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from tprig_inject.log import Log, Quick
from tprig_inject.recorders.paths import PATHS
from tprig_inject.ring import Ring

OWNER = object()


class Recorded:
    """A log, one of whose seams is called."""

    def __init__(self, quick: Quick) -> None:
        self.records: list[dict[str, Any]] = []
        self.log = Log(Ring(None, 64), self.records.append)
        self.asked = 0
        self.call: Callable[..., object] = self.log.around(
            lambda *_args, **_kwargs: None, quick, self.tell
        )

    def tell(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Hashable, frame: FrameType
    ) -> int | None:
        del kwargs
        self.asked += 1
        if key is None:
            return None
        number = self.log.find(key, frame)
        return self.log.tell(key, {"shape": args[1].shape}) if number is None else number

    def told(self) -> list[tuple[str, tuple[int, ...]]]:
        """The innermost function and the shape of each call, in order."""
        self.log.spill()
        told: dict[int, tuple[str, tuple[int, ...]]] = {}
        found = []
        for record in self.records:
            if record["type"] == "operation":
                told[record["id"]] = record["location"][0].split(":")[1], record["shape"]
            else:
                found += [told[number] for number in record["operations"]]
        return found


@pytest.fixture
def recorded() -> Recorded:
    return Recorded(Quick("seam", tensor=1, count=2))


def tensor(*shape: int, dtype: str = "float32") -> SimpleNamespace:
    return SimpleNamespace(shape=shape, dtype=dtype)


def first(recorded: Recorded, rows: int = 4) -> None:
    recorded.call(OWNER, tensor(rows, 8))


def second(recorded: Recorded, rows: int = 4) -> None:
    recorded.call(OWNER, tensor(rows, 8))


def test_what_repeats_is_looked_up_and_not_asked_for(recorded: Recorded) -> None:
    for _ in range(20):
        first(recorded)
        second(recorded)
    assert recorded.told() == [("first", (4, 8)), ("second", (4, 8))] * 20
    assert recorded.asked < 10


def test_another_caller_than_last_time_is_told_apart(recorded: Recorded) -> None:
    order = [first, second, first, first, second, second, second, first, second] * 3
    for function in order:
        function(recorded)
    assert [name for name, _ in recorded.told()] == [function.__name__ for function in order]


def test_a_caller_further_out_is_told_apart(recorded: Recorded) -> None:
    def inner() -> None:
        first(recorded)

    def left() -> None:
        inner()

    def right() -> None:
        inner()

    order = [left, left, right, left, right, right, left] * 2
    for function in order:
        function()
    recorded.log.spill()
    outer = {r["id"]: r["location"][2].split(":")[1] for r in recorded.records
             if r["type"] == "operation"}  # fmt: skip
    calls = [outer[n] for r in recorded.records if r["type"] == "calls" for n in r["operations"]]
    assert calls == [function.__name__ for function in order]


def test_sizes_types_and_owners_are_told_apart(recorded: Recorded) -> None:
    for _ in range(3):
        for rows in (4, 5, 5, 4):
            first(recorded, rows)
    assert [shape[0] for _, shape in recorded.told()] == [4, 5, 5, 4] * 3
    told = len(recorded.records)
    for owner, dtype in ((OWNER, "float32"), (OWNER, "int8"), (object(), "int8")) * 2:
        recorded.call(owner, tensor(4, 8, dtype=dtype))
    operations = [r for r in recorded.records[told:] if r["type"] == "operation"]
    assert len(operations) == 3


def test_a_capture_is_told_apart_from_what_runs_eagerly(recorded: Recorded) -> None:
    for mode in ("eager", "eager", "capture", "eager", "capture", "capture"):
        recorded.log.mode = mode
        first(recorded)
    recorded.log.spill()
    modes = {r["id"]: r["mode"] for r in recorded.records if r["type"] == "operation"}
    (calls,) = (r["operations"] for r in recorded.records if r["type"] == "calls")
    assert [modes[n] for n in calls] == [
        *("eager", "eager", "capture", "eager", "capture", "capture")
    ]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((OWNER,), {}), ((OWNER, 3), {}), ((OWNER, tensor(1), 3), {}),
     ((OWNER, tensor(1)), {"op": 3}), ((OWNER, tensor(1)), {"group": 3, "op": 4})],
)  # fmt: skip
def test_what_is_called_otherwise_is_looked_at_closer_and_done_all_the_same(
    recorded: Recorded, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Here it cannot be told at all."""
    first(recorded)
    recorded.call(*args, **kwargs)
    first(recorded)
    assert len(recorded.told()) == 2


def test_calls_of_nccl_are_told_by_their_numbers_and_not_by_their_buffers() -> None:
    paths = {path.seam: path for path in PATHS}
    quick = paths["nccl.all_reduce"].quick
    assert quick.key is not None

    def key(count: int = 8, comm: int = 1, stream: int = 2, send: int = 3) -> Hashable:
        assert quick.key is not None
        args = (object(), c_void_p(send), c_void_p(4), count, 7, 0, c_void_p(comm))
        return quick.key((*args, c_void_p(stream)), {})

    assert key() == key(send=9)
    assert len({key(), key(count=9), key(comm=5), key(stream=6)}) == 4
    assert quick.key((object(), 1), {}) is None


def called_from(path: str, recorded: Recorded, lines_before: int) -> str:
    """Where a call is said to come from that code of that file makes."""
    source = "\n" * lines_before + "def call(do): do()\n"
    names: dict[str, Any] = {}
    exec(compile(source, path, "exec"), names)  # noqa: S102 - stands for what a compiler wrote
    names["call"](lambda: recorded.call(OWNER, tensor(4, 8)))
    return str([r for r in recorded.records if r["type"] == "operation"][-1]["location"][1])


@pytest.mark.parametrize(
    "folder",
    [
        "/cache/vllm/torch_compile_cache/torch_aot_compile/1f7e/inductor_cache/sl",
        "/scratch/torchinductor_somebody/sl",
        "/own/cache/sl",
    ],
)
def test_generated_code_is_named_alike_on_each_rank(
    recorded: Recorded, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are named after what they hold, which differs with the rank's shard."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/own/cache")
    names = {called_from(f"{folder}/{name}.py", recorded, line) for line, name in enumerate("ab")}
    assert names == {"compiled:call"}


def test_code_that_was_written_is_named_by_file_and_line(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert called_from("/site/model.py", recorded, 3) == "model.py:call:4"
