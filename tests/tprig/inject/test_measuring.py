"""What measurements rest on in a worker: slowdowns, copies by shape, and the device's timeline."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from tprig_inject.context import Context
from tprig_inject.faults import plant, slowness
from tprig_inject.hooks import Hooks
from tprig_inject.recorders import host_copies
from tprig_inject.recorders.device_times import Timeline
from tprig_inject.seams import SEAMS, Seam

from tprig import evidence


class Runner:
    """Stands for vLLM's model runner."""

    def execute_model(self, scheduler_output: Any) -> str:
        return f"ran {scheduler_output.total_num_scheduled_tokens}"


class Mask(NamedTuple):
    token_ids: Any
    counts: Any
    vocab_size: int = 16


class Output:
    """Stands for vLLM's asynchronous output."""

    def __init__(
        self,
        model_runner_output: Any,
        sampler_output: Any,
        num_sampled_tokens: Any,
        main_stream: Any,
        copy_stream: Any,
    ) -> None:
        self.made = (model_runner_output, sampler_output, main_stream, copy_stream)
        self.sampled_token_ids = np.zeros((2, 4), dtype=np.int64)
        self.num_sampled_tokens_np = np.array(num_sampled_tokens, dtype=np.int32)
        self.num_nans = None
        self.sampling_mask_tensors: Mask | None = None
        self.prompt_logprobs_dict: dict[str, Any] = {}

    def get_output(self) -> str:
        self.sampling_mask_tensors = None
        return "output"


class Speculator:
    """Stands for vLLM's speculator."""

    def propose(self, input_batch: Any) -> str:
        return f"drafts of {input_batch}"


TABLE = {
    "model_runner.execute_model": Seam(
        __name__, "Runner.execute_model", SEAMS["model_runner.execute_model"].parameters
    ),
    "async_output.get_output": Seam(
        __name__, "Output.get_output", SEAMS["async_output.get_output"].parameters
    ),
    "async_output.init": Seam(
        __name__, "Output.__init__", ("self", "model_runner_output", "sampler_output")
    ),
    "speculator.propose": Seam(
        __name__, "Speculator.propose", SEAMS["speculator.propose"].parameters
    ),
}


@pytest.fixture
def told() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def context(told: list[dict[str, Any]]) -> Context:
    return Context(Hooks(TABLE), told.append, model_runner=None)


def step(tokens: int = 3) -> SimpleNamespace:
    return SimpleNamespace(total_num_scheduled_tokens=tokens)


# --- slowdowns ------------------------------------------------------------------------------------


class Clock:
    """A clock that goes on by itself only while somebody spins."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.spun_s: list[float] = []

    def perf_counter(self) -> float:
        return self.now_s

    def spin(self, until_s: float) -> None:
        self.spun_s.append(max(0.0, until_s - self.now_s))
        self.now_s = max(self.now_s, until_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(slowness, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    monkeypatch.setattr(slowness, "_spin", clock.spin)
    return clock


def served(context: Context, clock: Clock, steps: int, step_s: float) -> None:
    for number in range(steps):
        context.step = number
        assert Runner().execute_model(step()) == "ran 3"
        clock.now_s += step_s


def test_every_step_waits_a_tenth_of_the_one_before(
    context: Context, clock: Clock, told: list[dict[str, Any]]
) -> None:
    plant("slow-10", context)
    served(context, clock, 4, step_s=2.0)
    assert clock.spun_s == pytest.approx([0.0, 0.2, 0.2, 0.2])
    assert [record["event"] for record in told] == ["armed", "struck"]
    context.close()
    served(context, clock, 2, step_s=2.0)
    assert len(clock.spun_s) == 4


def test_a_stall_comes_once(context: Context, clock: Clock) -> None:
    plant("stall", context)
    served(context, clock, 5, step_s=1.0)
    assert clock.spun_s == pytest.approx([0.0, 0.0, 20.0, 0.0, 0.0])
    context.close()


def test_waiting_ends_when_it_is_time() -> None:
    before_s = time.perf_counter()
    slowness._spin(before_s + 0.001)
    assert time.perf_counter() >= before_s + 0.001


# --- copies ---------------------------------------------------------------------------------------


def output(sampled: list[int]) -> Output:
    made = Output("model", "sampler", sampled, "main", "copies")
    made.sampling_mask_tensors = Mask(np.zeros((8, 3), dtype=np.int32), np.zeros(8, dtype=np.int32))
    return made


def test_copies_are_told_by_shape_before_they_are_taken_apart(
    context: Context, told: list[dict[str, Any]]
) -> None:
    host_copies.install(context)
    for sampled in ([1, 2], [0, 4]):
        assert output(sampled).get_output() == "output"
    context.close()
    records = [msgspec.convert(record, evidence.RankRecord) for record in told]
    first, second = (r for r in records if isinstance(r, evidence.HostCopies))
    assert (first.step, first.committed) == (0, 3)
    assert (second.step, second.committed) == (1, 4)
    assert {t.name: (t.dtype, t.shape, t.size_bytes, t.rows) for t in first.tensors} == {
        "sampled_token_ids": ("int64", [2, 4], 64, 2),
        "num_sampled_tokens_np": ("int32", [2], 8, 2),
        "sampling_mask_tensors.token_ids": ("int32", [8, 3], 96, 8),
        "sampling_mask_tensors.counts": ("int32", [8], 32, 8),
    }


def test_prompt_logprobs_count_as_well(context: Context, told: list[dict[str, Any]]) -> None:
    host_copies.install(context)
    made = output([1, 1])
    made.prompt_logprobs_dict = {"r": Mask(np.zeros(2), np.zeros(2)), "none": None}
    made.get_output()
    context.close()
    names = [tensor["name"] for tensor in told[0]["tensors"]]
    assert "prompt_logprobs_dict.token_ids" in names


# --- the device's timeline ------------------------------------------------------------------------


class Device:
    """Events whose time is the order in which they are recorded, in milliseconds."""

    def __init__(self) -> None:
        self.recorded: list[tuple[int, str]] = []
        self.synchronised = 0

    def event(self) -> Event:
        return Event(self)

    def stream(self) -> str:
        return "main"

    def synchronize(self) -> None:
        self.synchronised += 1


class Event:
    def __init__(self, device: Device) -> None:
        self._device = device
        self.at_ms = -1

    def record(self, stream: str) -> None:
        self.at_ms = len(self._device.recorded)
        self._device.recorded.append((self.at_ms, stream))

    def elapsed_time(self, end: Event) -> float:
        return float(end.at_ms - self.at_ms)


def test_copy_and_proposal_lie_on_one_timeline(
    context: Context, told: list[dict[str, Any]]
) -> None:
    device = Device()
    Timeline(context, device.event).install(device.stream, device.synchronize)
    for number in range(2):
        context.step = number
        Runner().execute_model(step())
        Output("model", "sampler", [1], "main", copy_stream="copies")
        assert Speculator().propose("batch") == "drafts of batch"
    Runner().execute_model(step(tokens=0))
    assert told == []
    context.close()
    assert device.synchronised == 1
    assert [stream for _, stream in device.recorded[:5]] == [
        *("main", "main", "copies", "main", "main")
    ]
    first, second = (msgspec.convert(record, evidence.RankRecord) for record in told)
    assert isinstance(first, evidence.DeviceTimes)
    assert isinstance(second, evidence.DeviceTimes)
    assert (first.copy_start_ms, first.copy_end_ms) == (1.0, 2.0)
    assert (first.proposal_start_ms, first.proposal_end_ms) == (3.0, 4.0)
    assert second.step == 1


def test_a_step_that_proposed_nothing_is_left_out(
    context: Context, told: list[dict[str, Any]]
) -> None:
    device = Device()
    Timeline(context, device.event).install(device.stream, device.synchronize)
    context.step = 0
    Runner().execute_model(step())
    Output("model", "sampler", [1], "main", "copies")
    context.close()
    assert told == []


def test_without_a_step_nothing_is_recorded(context: Context) -> None:
    device = Device()
    Timeline(context, device.event).install(device.stream, device.synchronize)
    Speculator().propose("dummy batch of a warm-up")
    context.close()
    assert device.recorded == []
