"""A worker that computes nothing, so that what it costs to record one can be timed.

It is put together as vLLM's is: modules of torch's within one another ask a group, which asks its
communicator, which asks the wire, each of them with the arguments that vLLM gives and from as deep
in the stack. The recorders are put in place by the session that puts them into a real worker.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_void_p
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from tprig_inject.hooks import Hooks
from tprig_inject.recorders import paths
from tprig_inject.seams import SEAMS, Seam
from tprig_inject.session import Session

F = TypeVar("F", bound=Callable[..., Any])
FLOAT32, SUM = 7, 0
"""As NCCL numbers them."""
RANKS = (0, 1)


def plumbing(function: F) -> F:
    """Have a function look as if it stood where vLLM's groups do."""
    there = "/vllm/distributed/parallel_state.py"
    function.__code__ = function.__code__.replace(co_filename=there)
    return function


class SharedMemory:
    """Stands for the wire of a CPU."""

    def __init__(self, communicator: Any) -> None:
        self.communicator = communicator

    def all_reduce(self, input: torch.Tensor, group: Any = None) -> None:  # noqa: A002
        pass

    def all_gather_into_tensor(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        group: Any = None,
    ) -> None:
        pass


class Nccl:
    """Stands for PyNccl's library."""

    def all_reduce(self, sendbuff: Any, recvbuff: Any, count: int, datatype: int, op: int,
                   comm: c_void_p, stream: c_void_p) -> None:  # fmt: skip
        pass

    def all_gather(self, sendbuff: Any, recvbuff: Any, count: int, datatype: int,
                   comm: c_void_p, stream: c_void_p) -> None:  # fmt: skip
        pass


class CpuCommunicator:
    """Asks shared memory."""

    def __init__(self, name: str) -> None:
        self.unique_name, self.ranks, self.device_group = name, RANKS, object()
        self.wire = SharedMemory(self)

    @plumbing
    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        self.wire.all_reduce(input_, group=self.device_group)
        return input_

    @plumbing
    def all_gather(self, input_: torch.Tensor) -> torch.Tensor:
        self.wire.all_gather_into_tensor(input_, input_, group=self.device_group)
        return input_


class NcclCommunicator:
    """Asks NCCL."""

    def __init__(self, name: str) -> None:
        del name
        self.wire, self.comm, self.stream = Nccl(), c_void_p(4096), 8192

    @plumbing
    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        self.wire.all_reduce(c_void_p(input_.data_ptr()), c_void_p(input_.data_ptr()),
                             input_.numel(), FLOAT32, SUM, self.comm,
                             c_void_p(self.stream))  # fmt: skip
        return input_

    @plumbing
    def all_gather(self, input_: torch.Tensor) -> torch.Tensor:
        self.wire.all_gather(c_void_p(input_.data_ptr()), c_void_p(input_.data_ptr()),
                             input_.numel(), FLOAT32, self.comm,
                             c_void_p(self.stream))  # fmt: skip
        return input_


class Group:
    """Stands for vLLM's group coordinator."""

    def __init__(self, communicator: type[Any]) -> None:
        self.unique_name, self.ranks = "tp:0", RANKS
        self.device_communicator = communicator(self.unique_name)

    @plumbing
    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        return self._all_reduce_out_place(input_)

    @plumbing
    def _all_reduce_out_place(self, input_: torch.Tensor) -> torch.Tensor:
        reduced: torch.Tensor = self.device_communicator.all_reduce(input_)
        return reduced

    @plumbing
    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return self._all_gather_out_place(input_, dim)

    @plumbing
    def _all_gather_out_place(self, input_: torch.Tensor, dim: int) -> torch.Tensor:
        del dim
        gathered: torch.Tensor = self.device_communicator.all_gather(input_)
        return gathered


class Asks(torch.nn.Module):  # type: ignore[misc]
    """What all modules below have: a group."""

    def __init__(self, group: Group, *inner: torch.nn.Module) -> None:
        super().__init__()
        self.group = group
        self.inner = torch.nn.ModuleList(inner)


class Linear(Asks):
    """Reduces, as a row-parallel layer does."""

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.group.all_reduce(tensor)


class Block(Asks):
    """An attention, or an MLP."""

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        reduced: torch.Tensor = self.inner[0](tensor)
        return reduced


class DecoderLayer(Asks):
    """Both of them."""

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        reduced: torch.Tensor = self.inner[1](self.inner[0](tensor))
        return reduced


class Model(Asks):
    """An embedding and some layers."""

    def __init__(self, group: Group, layers: int) -> None:
        blocks = ((Block(group, Linear(group)), Block(group, Linear(group))) for _ in range(layers))
        super().__init__(group, Linear(group), *(DecoderLayer(group, *pair) for pair in blocks))

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        for module in self.inner:
            tensor = module(tensor)
        return tensor


def dispatch(cudagraph_manager: Any, num_reqs: int, num_tokens: int) -> tuple[Any, None]:
    """Stands for vLLM's choice of a graph."""
    del cudagraph_manager
    mode = SimpleNamespace(name="NONE")
    return SimpleNamespace(cg_mode=mode, num_tokens=num_tokens, num_reqs=num_reqs), None


class Speculator:
    """Drafts by a model of one layer."""

    def __init__(self, group: Group, tokens: int) -> None:
        self.num_speculative_steps, self.group = tokens, group
        self.model = Model(group, 1)

    def propose(self, input_batch: Any, tensor: torch.Tensor) -> None:
        # The first draft goes over all that was verified, each other one over what came of it.
        last = tensor[: len(input_batch.req_ids)]
        for number in range(self.num_speculative_steps):
            self.model(last if number else tensor)
            self.group.all_gather(last)


class ModelRunner:
    """Makes steps."""

    def __init__(self, communicator: type[Any], layers: int, tokens: int, requests: int) -> None:
        self.group = Group(communicator)
        self.model = Model(self.group, layers)
        self.speculator = Speculator(self.group, tokens)
        self.hidden = torch.zeros(requests * (tokens + 1), 128)
        names = [f"request-{number}-00000000" for number in range(requests)]
        counts = torch.full((requests,), 2, dtype=torch.int32)
        self.sampled = (None, counts, counts, None)
        self.batch = SimpleNamespace(req_ids=names)
        self.schedule = SimpleNamespace(
            num_scheduled_tokens=dict.fromkeys(names, tokens + 1),
            total_num_scheduled_tokens=requests * (tokens + 1),
            scheduled_spec_decode_tokens={name: [1] * tokens for name in names},
            finished_req_ids=set(),
            preempted_req_ids=None,
        )
        self.vllm_config = SimpleNamespace()

    def execute_model(self, scheduler_output: Any) -> None:
        globals()["dispatch"](None, len(self.batch.req_ids), 32)
        del scheduler_output
        self.model(self.hidden)

    def sample(self, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        del input_batch, grammar_output
        self.group.all_gather(hidden_states)
        return self.sampled

    def step(self) -> None:
        """One step, as a worker makes it."""
        self.execute_model(self.schedule)
        self.sample(self.hidden, self.batch, None)
        self.speculator.propose(self.batch, self.hidden)


_HERE = {
    "group.all_reduce": "Group._all_reduce_out_place",
    "group.all_gather": "Group._all_gather_out_place",
    "cpu_shm.all_reduce": "SharedMemory.all_reduce",
    "cpu_shm.all_gather": "SharedMemory.all_gather_into_tensor",
    "nccl.all_reduce": "Nccl.all_reduce",
    "nccl.all_gather": "Nccl.all_gather",
    "model_runner.dispatch": "dispatch",
    "model_runner.execute_model": "ModelRunner.execute_model",
    "model_runner.sample": "ModelRunner.sample",
    "speculator.propose": "Speculator.propose",
}


def session() -> Session:
    """What puts recorders into this worker; of the seams it has those that a step passes."""
    # Told once for each communicator, by looking through vLLM's groups.
    paths._of_nccl = lambda _: ("tp:0", RANKS)  # type: ignore[assignment]
    table = {
        name: Seam(__name__, _HERE.get(name, "nowhere"), seam.parameters)
        for name, seam in SEAMS.items()
    }
    return Session(Hooks(table))
