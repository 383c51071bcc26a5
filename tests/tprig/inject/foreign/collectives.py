"""Lets the recorders of collectives watch vLLM's groups, whose wire answers without a peer."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import torch
from tprig_inject import ring as rings
from tprig_inject.hooks import Hooks
from tprig_inject.log import Log, Quick
from tprig_inject.recorders import graphs
from tprig_inject.ring import Ring
from tprig_inject.seams import with_overrides
from tprig_inject.session import Session
from vllm.distributed.device_communicators.cpu_communicator import (
    CpuCommunicator,
    _CPUSHMDistributed,
)
from vllm.distributed.parallel_state import GroupCoordinator
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from tests.tprig.inject.foreign.sampling import sampled

Records = list[dict[str, Any]]
RANKS = [4, 6]


class _Speculator:
    """Drafts as many tokens as it is told to, with a collective for each."""

    num_speculative_steps = 3

    def __init__(self, group: Any) -> None:
        self.group = group

    def propose(self, *_: Any, num_speculative_tokens: int | None = None) -> None:
        for _token in range(num_speculative_tokens or self.num_speculative_steps):
            self.group.all_reduce(torch.zeros(1, 8))


def _group() -> Any:
    """The second of two ranks."""
    group = GroupCoordinator.__new__(GroupCoordinator)
    group.unique_name, group.ranks, group.rank, group.rank_in_group = "tp:7", RANKS, 6, 1
    group.world_size, group.use_custom_op_call, group.cpu_group = 2, False, None
    device = group.device_communicator = CpuCommunicator.__new__(CpuCommunicator)
    device.world_size, device.rank_in_group, device.ranks = 2, 1, RANKS
    device.unique_name, device.device_group = "tp:7", None
    device.dist_module = _CPUSHMDistributed.__new__(_CPUSHMDistributed)
    device.dist_module.communicator = device
    return group


def _stub_wire() -> None:
    """Have shared memory give back what it got, and torch's barrier be passed at once."""

    def all_reduce(self: Any, input: Any, group: Any = None) -> None:  # noqa: A002 - vLLM's name
        pass

    def all_gather(self: Any, output: Any, input: Any, group: Any = None) -> None:  # noqa: A002
        output[: len(input)] = input

    def gather(
        self: Any,
        input: Any,  # noqa: A002
        gather_list: Any,
        dst: int = -1,
        group: Any = None,
    ) -> None:
        pass

    for name, stand_in in (
        ("all_reduce", all_reduce),
        ("all_gather_into_tensor", all_gather),
        ("gather", gather),
    ):
        _demand_same_call(getattr(_CPUSHMDistributed, name), stand_in)
        setattr(_CPUSHMDistributed, name, stand_in)


def _demand_same_call(original: Any, stand_in: Any) -> None:
    """What stands for a wire is called as the wire is: by the same names, kinds and defaults."""

    def called(function: Any) -> list[tuple[Any, ...]]:
        parameters = inspect.signature(function).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters]

    if called(original) != called(stand_in):
        raise AssertionError(f"expected {called(original)}, found {called(stand_in)}")


def _runner(group: Any) -> Any:
    """A model runner with two all-reduces and a gather in each step."""

    def execute_model(self: Any, scheduler_output: Any) -> None:
        if scheduler_output.total_num_scheduled_tokens == 0:
            return
        for _layer in range(2):
            group.all_reduce(torch.zeros(4, 8, dtype=torch.bfloat16))

    def sample(self: Any, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        group.all_gather(torch.zeros(4, 16), dim=-1)
        return sampled([[1, 2], [3]], slots=4, drafted=[3, 3])

    GPUModelRunner.execute_model, GPUModelRunner.sample = execute_model, sample
    parallel = SimpleNamespace(
        enable_expert_parallel=False, pipeline_parallel_size=1, enable_dbo=False,
        decode_context_parallel_size=1, prefill_context_parallel_size=1, enable_eplb=False,
    )  # fmt: skip
    fused = SimpleNamespace(pass_config=SimpleNamespace(fuse_allreduce_rms=False))
    return SimpleNamespace(
        speculator=_Speculator(group),
        vllm_config=SimpleNamespace(parallel_config=parallel, compilation_config=fused),
    )


def _scheduled(tokens: dict[str, int]) -> Any:
    return SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_spec_decode_tokens={name: [1] * (n - 1) for name, n in tokens.items() if n > 1},
        finished_req_ids={"b-00000000", "a-00000000"},
        preempted_req_ids=None,
    )


def record_steps(
    steps: list[dict[str, int]],
    seams: dict[str, Any] | None = None,
    recorders: list[str] | None = None,
) -> dict[str, Any]:
    """What is recorded of these steps, by the tokens that each schedules.

    Returns:
        `records`, and whether anything of ours `stayed`.
    """
    _stub_wire()
    group = _group()
    runner = _runner(group)
    originals = _standing()
    records: Records = []
    session = Session(Hooks(with_overrides(seams or {})))
    session.begin(
        write=records.append,
        recorders=recorders or ["collectives", "decisions"],
        faults=[],
        model_runner=runner,
    )
    batch = SimpleNamespace(req_ids=["a-00000000", "b-00000000"])
    for tokens in steps:
        GPUModelRunner.execute_model(None, _scheduled(tokens))
        if tokens:
            GPUModelRunner.sample(None, None, batch, grammar_output=None)
            runner.speculator.propose(num_speculative_tokens=2)
    session.end()
    return {
        "records": records,
        "stayed": _standing() != originals or "propose" in vars(runner.speculator),
    }


def _standing() -> list[Any]:
    return [
        GPUModelRunner.execute_model,
        GroupCoordinator._all_reduce_out_place,
        _CPUSHMDistributed.all_reduce,
        torch.distributed.barrier,
        torch.cuda.CUDAGraph.replay,
    ]


def kinds() -> Records:
    """The operations of one call of each kind that a group of two serves here."""
    _stub_wire()
    group = _group()
    records: Records = []
    session = Session(Hooks())
    session.begin(
        write=records.append, recorders=["collectives"], faults=[], model_runner=_runner(group)
    )
    group.all_reduce(torch.zeros(2, 3))
    group.all_gather(torch.zeros(2, 3), dim=0)
    group.gather(torch.zeros(2, 3, dtype=torch.int64), dst=0)
    session.end()
    return [record for record in records if record["type"] == "operation"]


def torn() -> Records:
    """What is recorded of a call that raises, and of one that cannot be told."""
    _stub_wire()
    group = _group()

    def fails(self: Any, input: Any, group: Any = None) -> None:  # noqa: A002 - vLLM's name
        raise RuntimeError("the peer is gone")

    _CPUSHMDistributed.all_reduce = fails
    records: Records = []
    session = Session(Hooks())
    session.begin(
        write=records.append, recorders=["collectives"], faults=[], model_runner=_runner(group)
    )
    try:
        group.all_reduce(torch.zeros(2, 3))
    except RuntimeError as error:
        records.append({"type": "raised", "message": str(error)})
    device = group.device_communicator
    del device.unique_name
    group.all_gather(torch.zeros(2, 3))
    session.end()
    return records


def _of_kind(kind: int) -> dict[str, Any]:
    return {"kind": str(kind)}


def wrapped_ring(calls: int, capacity: int) -> dict[str, Any]:
    """What is in the stream and in the ring after so many calls, the last of them not left."""
    records: Records = []
    ring = Ring(None, capacity)
    log = Log(ring, records.append)
    seen: dict[str, Any] = {}

    def look(kind: int, number: int) -> None:
        del kind
        if number == calls - 1:
            log.spill()
            first = max(calls - capacity, 0)
            words = ring.words
            seen.update(
                records=list(records),
                rows=ring.rows(first, calls),
                entered=words[rings.ENTERED],
                left=words[rings.LEFT],
                spilled=words[rings.SPILLED],
            )

    def tell(args: Any, kwargs: Any, key: Any, frame: Any) -> int:
        del kwargs
        number = log.find(key, frame)
        return log.tell(key, _of_kind(args[0])) if number is None else number

    around = log.around(look, Quick("call", key=lambda args, _: args[0]), tell)
    for number in range(calls):
        around(number % 2, number)
    return seen


def capture_and_replay() -> Records:
    """Two graphs are captured before a run, and one of them is replayed in it."""
    _stub_wire()
    group = _group()

    def capture_begin(self: Any, pool: Any = None, capture_error_mode: str = "global") -> None:
        pass

    def nothing(self: Any) -> None:
        pass

    graph_class = torch.cuda.CUDAGraph
    graph_class.capture_begin = capture_begin
    graph_class.capture_end = graph_class.replay = nothing
    hooks = Hooks()
    graphs._captures.clear()
    graphs.watch(hooks)
    # A CPU build makes none; what is watched is the class.
    made = [SimpleNamespace() for _ in range(3)]
    for size, graph in zip((4, 8), made, strict=False):
        graph_class.capture_begin(graph)
        group.all_reduce(torch.zeros(size, 8))
        graph_class.capture_end(graph)
    records: Records = []
    session = Session(hooks)
    graphs._replay = lambda digest: {
        "layer": "graph", "kind": "replay", "backend": None, "group": "", "ranks": RANKS,
        "shape": None, "dtype": None, "mode": "replay", "template": digest,
    }  # fmt: skip
    session.begin(
        write=records.append, recorders=["collectives"], faults=[], model_runner=_runner(group)
    )
    graph_class.replay(made[1])
    graph_class.replay(made[1])
    graph_class.replay(made[2])
    # What a graph held that was let go, at whose address another one is captured.
    graph_class.capture_begin(made[1])
    group.all_reduce(torch.zeros(4, 8))
    graph_class.capture_end(made[1])
    graph_class.replay(made[1])
    session.end()
    return records
