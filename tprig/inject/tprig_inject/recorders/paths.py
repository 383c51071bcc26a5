"""The paths that collectives take in vLLM, one table: what is hooked, and what is known and is not.

The semantic layer is what vLLM asks a group for. It survives torch.compile, since it lies inside
vLLM's opaque custom operators. The wire layer is what the backend is asked for that was chosen on
this rank for this call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tprig_inject.log import Quick

Bound = Mapping[str, Any]
"""A call's arguments by the names of the seam's parameters."""
Group = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Path:
    """One way on which a collective can go.

    Attributes:
        seam: names it, in the table of seams too.
        layer: `semantic` or `wire`.
        kind: what the collective does.
        backend: what carries it; None on the semantic layer.
        group: the group's name and global ranks.
        size: shape and dtype of what this rank gives, either of which may be None.
        root: global rank; of `send` and `recv`, the sender's.
        reduction: how it reduces.
        stream: the CUDA stream.
        cuda_only: True for what a CPU build never calls.
    """

    seam: str
    layer: str
    kind: str
    backend: str | None = None
    group: Callable[[Bound], Group]
    size: Callable[[Bound], tuple[Any, Any]]
    root: Callable[[Bound], int | None] | None = None
    reduction: Callable[[Bound], str | None] | None = None
    stream: Callable[[Bound], str | None] | None = None
    cuda_only: bool = False
    place: int = 0
    """Place of the tensor that says everything of a call that is made as vLLM makes it."""
    count: int = 0
    """Arguments that such a call gives by their places, with `self`; none for other paths."""
    key_of: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = None
    """What else tells such calls apart."""

    @property
    def quick(self) -> Quick:
        """How to tell a call from its arguments as they stand."""
        key_of = self.key_of if self.key_of or self.count else _closer
        return Quick(self.seam, self.place, self.count, key_of)

    def key(self, bound: Bound) -> tuple[Any, ...]:
        """Equal for calls that are told alike."""
        return (
            self.seam,
            self.group(bound),
            self.size(bound),
            self.root and self.root(bound),
            self.reduction and self.reduction(bound),
            self.stream and self.stream(bound),
        )

    def tell(self, bound: Bound) -> dict[str, Any]:
        """The operation, as the evidence schema has it but for id, mode and location."""
        name, ranks = self.group(bound)
        shape, dtype = self.size(bound)
        root = None if self.root is None else self.root(bound)
        return {
            "layer": self.layer,
            "kind": self.kind,
            "backend": self.backend if self.backend != "torch" else _torch_backend(bound),
            "group": name,
            "ranks": list(ranks),
            "shape": None if shape is None else [int(size) for size in shape],
            "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
            "root": root,
            "reduction": None if self.reduction is None else self.reduction(bound),
            "stream": None if self.stream is None else self.stream(bound),
        }


def _closer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG001
    """Of what must be looked at closer."""
    return


def _numbers(seam: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Of a function of NCCL's: its numbers, then the communicator and the stream as C has them."""
    first = 2 if seam in ("nccl.send", "nccl.recv") else 3

    def key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        if kwargs or len(args) < first + 4:
            return None
        return seam, args[first:-2], args[-2].value, args[-1].value

    return key


# --- groups -------------------------------------------------------------------------------------


def _coordinator(bound: Bound) -> Group:
    return _of_coordinator(bound["self"])


def _of_coordinator(group: Any) -> Group:
    return group.unique_name, tuple(group.ranks)


def _communicator(bound: Bound) -> Group:
    communicator = bound["self"].communicator
    return communicator.unique_name, tuple(communicator.ranks)


def _process_group(bound: Bound) -> Group:
    return _of_process_group(bound.get("group"))


def _of_process_group(group: Any) -> Group:
    """A group of torch's by the ranks in it: its own name is no coordinator's."""
    import torch.distributed as dist

    ranks = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))
    return f"ranks {','.join(map(str, ranks))}", ranks


def _owner(bound: Bound) -> Group:
    """The group of a communicator of vLLM's that keeps torch's one as `group`."""
    return _of_process_group(bound["self"].group)


def _nccl_group(bound: Bound) -> Group:
    return _of_nccl(bound["comm"].value)


@cache
def _of_nccl(comm: int) -> Group:
    """The group whose PyNccl communicator this is."""
    from vllm.distributed import parallel_state

    for reference in parallel_state._groups.values():
        group = reference()
        pynccl = getattr(getattr(group, "device_communicator", None), "pynccl_comm", None)
        if getattr(getattr(pynccl, "comm", None), "value", None) == comm:
            return _of_coordinator(group)
    return "nccl", ()


# --- sizes --------------------------------------------------------------------------------------


def _tensor(name: str) -> Callable[[Bound], tuple[Any, Any]]:
    def size(bound: Bound) -> tuple[Any, Any]:
        tensor = bound[name]
        return tensor.shape, tensor.dtype

    return size


def _ragged(bound: Bound) -> tuple[Any, Any]:
    """Of ragged kinds the sizes of all ranks, which each of them knows: its own one may differ."""
    given = bound["input_"]
    first = given[0] if isinstance(given, list) else given
    sizes = bound.get("sizes")
    return (tuple(first.shape) if sizes is None else tuple(sizes)), first.dtype


def _nothing(bound: Bound) -> tuple[Any, Any]:  # noqa: ARG001 - of objects no size is known
    return None, None


def _awaited(bound: Bound) -> tuple[Any, Any]:
    return bound["size"], bound["dtype"]


_NCCL_TYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
)
_NCCL_REDUCTIONS = ("sum", "prod", "max", "min", "avg")


def _nccl_size(bound: Bound) -> tuple[Any, Any]:
    number = int(bound["datatype"])
    known = 0 <= number < len(_NCCL_TYPES)
    return (int(bound["count"]),), _NCCL_TYPES[number] if known else f"nccl {number}"


# --- roots, reductions, streams -----------------------------------------------------------------


def _rank_of(name: str) -> Callable[[Bound], int | None]:
    """A rank in the group, as a global one."""

    def root(bound: Bound) -> int | None:
        ranks, place = bound["self"].ranks, bound.get(name, 0)
        return None if place is None else int(ranks[place])

    return root


def _next(name: str, step: int) -> Callable[[Bound], int | None]:
    """The sender of a send or a receive, whose peer is the next or the last rank by default."""

    def root(bound: Bound) -> int | None:
        group = bound["self"]
        if step > 0:
            return int(group.rank)
        place = bound.get(name)
        return int(group.ranks[(group.rank_in_group - 1) % len(group.ranks) if place is None
                               else place])  # fmt: skip

    return root


def _given(name: str) -> Callable[[Bound], int | None]:
    def root(bound: Bound) -> int | None:
        value = bound.get(name)
        return None if value is None else int(value)

    return root


def _nccl_root(bound: Bound) -> int | None:
    ranks = _nccl_group(bound)[1]
    place = int(bound["root"])
    return ranks[place] if place < len(ranks) else place


def _sum(bound: Bound) -> str:  # noqa: ARG001 - vLLM's groups reduce in one way
    return "sum"


def _torch_reduction(bound: Bound) -> str | None:
    op = bound.get("op")
    return "sum" if op is None else str(op).rpartition(".")[2].lower()


def _nccl_reduction(bound: Bound) -> str:
    number = int(bound["op"])
    return _NCCL_REDUCTIONS[number] if 0 <= number < len(_NCCL_REDUCTIONS) else f"nccl {number}"


_streams: dict[Any, str] = {}


def _nccl_stream(bound: Bound) -> str:
    """Streams by the order in which they are met: their addresses say nothing."""
    address = getattr(bound["stream"], "value", bound["stream"])
    return _streams.setdefault(address, f"stream {len(_streams)}")


def _torch_backend(bound: Bound) -> str:
    import torch.distributed as dist

    return f"torch-{dist.get_backend(bound.get('group'))}"


# --- the table ----------------------------------------------------------------------------------


def _semantic(kind: str, tensor: str = "input_", **fields: Any) -> Path:
    return Path(
        seam=f"group.{fields.pop('name', kind)}",
        layer="semantic",
        kind=kind,
        group=_coordinator,
        size=fields.pop("size", _tensor(tensor)),
        **fields,
    )


def _torch(kind: str, name: str, tensor: str | None, **fields: Any) -> Path:
    return Path(
        seam=f"torch.{name}",
        layer="wire",
        kind=kind,
        backend="torch",
        group=_process_group,
        size=_nothing if tensor is None else _tensor(tensor),
        **fields,
    )


def _nccl(kind: str, name: str, size: Any = _nccl_size, **fields: Any) -> Path:
    return Path(
        seam=f"nccl.{name}",
        layer="wire",
        kind=kind,
        backend="pynccl",
        group=_nccl_group,
        size=size,
        stream=_nccl_stream,
        cuda_only=True,
        key_of=_numbers(f"nccl.{name}"),
        **fields,
    )


def _cuda(kind: str, seam: str, backend: str, tensor: str, **fields: Any) -> Path:
    return Path(
        seam=seam,
        layer="wire",
        kind=kind,
        backend=backend,
        group=_owner,
        size=_tensor(tensor),
        cuda_only=True,
        place=1,
        count=2,
        **fields,
    )


_SEMANTIC = (
    _semantic("all_reduce", reduction=_sum, place=1, count=2),
    _semantic("all_gather", place=1, count=3),
    _semantic("reduce_scatter", reduction=_sum, place=1, count=3),
    _semantic("all_gatherv", size=_ragged),
    _semantic("reduce_scatterv", size=_ragged, reduction=_sum),
    _semantic("gather", root=_rank_of("dst")),
    _semantic("broadcast", root=_rank_of("src")),
    _semantic("broadcast", name="broadcast_object", size=_nothing, root=_rank_of("src")),
    _semantic("broadcast", name="broadcast_object_list", size=_nothing, root=_rank_of("src")),
    _semantic("broadcast", name="broadcast_tensor_dict", size=_nothing, root=_rank_of("src")),
    _semantic("send", tensor="tensor", root=_next("dst", 1)),
    _semantic("recv", size=_awaited, root=_next("src", -1)),
    _semantic("barrier", size=_nothing),
)
_SHARED_MEMORY = (
    Path(seam="cpu_shm.all_reduce", layer="wire", kind="all_reduce", backend="cpu-shm",
         group=_communicator, size=_tensor("input"), reduction=_sum, place=1, count=2),
    Path(seam="cpu_shm.gather", layer="wire", kind="gather", backend="cpu-shm",
         group=_communicator, size=_tensor("input"), root=_given("dst")),
    Path(seam="cpu_shm.all_gather", layer="wire", kind="all_gather", backend="cpu-shm",
         group=_communicator, size=_tensor("input"), place=2, count=3),
    Path(seam="message_queue.broadcast_object", layer="wire", kind="broadcast",
         backend="message-queue", group=lambda _: ("message queue", ()), size=_nothing),
)  # fmt: skip
_TORCH = (
    _torch("all_reduce", "all_reduce", "tensor", reduction=_torch_reduction, count=1),
    _torch("all_gather", "all_gather_into_tensor", "input_tensor", place=1, count=2),
    _torch("gather", "gather", "tensor", root=_given("dst")),
    _torch("reduce_scatter", "reduce_scatter_tensor", "input", reduction=_torch_reduction),
    _torch("broadcast", "broadcast", "tensor", root=_given("src")),
    _torch("broadcast", "broadcast_object_list", None, root=_given("src")),
    _torch("send", "send", "tensor"),
    _torch("recv", "recv", "tensor"),
    _torch("barrier", "barrier", None),
    _torch("all_to_all", "all_to_all_single", "input"),
)
_CUDA = (
    _nccl("all_reduce", "all_reduce", reduction=_nccl_reduction),
    _nccl("reduce", "reduce", reduction=_nccl_reduction, root=_nccl_root),
    _nccl("reduce_scatter", "reduce_scatter", reduction=_nccl_reduction),
    _nccl("all_gather", "all_gather"),
    _nccl("send", "send"),
    _nccl("recv", "recv"),
    _nccl("broadcast", "broadcast", root=_nccl_root),
    _cuda("all_reduce", "custom.all_reduce", "custom", "input", reduction=_sum),
    _cuda("all_gather", "custom.all_gather", "custom", "inp"),
    _cuda("reduce_scatter", "custom.reduce_scatter", "custom", "inp", reduction=_sum),
    _cuda("all_reduce", "quick.all_reduce", "quick", "inp", reduction=_sum),
    _cuda("all_reduce", "symm_mem.all_reduce", "symm-mem", "inp", reduction=_sum),
    _cuda("all_reduce", "flashinfer.all_reduce", "flashinfer", "input_tensor", reduction=_sum),
    _cuda("all_reduce", "flashinfer_pcie.all_reduce", "flashinfer-pcie", "inp", reduction=_sum),
)

PATHS: tuple[Path, ...] = (*_SEMANTIC, *_SHARED_MEMORY, *_TORCH, *_CUDA)
"""What is hooked, on a platform that has it."""


@dataclass(frozen=True)
class Unhooked:
    """A path that exists and is not hooked."""

    name: str
    layer: str
    why: str
    taken: Callable[[Any], bool]
    """Whether a run with this configuration of vLLM's may take it."""


UNHOOKED: tuple[Unhooked, ...] = (
    Unhooked(
        "all2all dispatch and combine",
        "semantic",
        "expert parallelism has managers of its own, one for each backend",
        lambda config: bool(config.parallel_config.enable_expert_parallel),
    ),
    Unhooked(
        "isend_tensor_dict, irecv_tensor_dict and the pipeline's side channels",
        "semantic",
        "they end on a handle, not on the return of a call",
        lambda config: config.parallel_config.pipeline_parallel_size > 1,
    ),
    Unhooked(
        "microbatches on threads of their own",
        "semantic",
        "two threads have no one order",
        lambda config: bool(config.parallel_config.enable_dbo),
    ),
    Unhooked(
        "context parallelism",
        "semantic",
        "it calls kernels that communicate by themselves",
        lambda config: (
            config.parallel_config.decode_context_parallel_size > 1
            or config.parallel_config.prefill_context_parallel_size > 1
        ),
    ),
    Unhooked(
        "all-reduces that a kernel holds together with RMSNorm",
        "wire",
        "a pass of the compiler puts them where the group's own call was",
        lambda config: bool(config.compilation_config.pass_config.fuse_allreduce_rms),
    ),
    Unhooked(
        "broadcasts of the engine core to its workers",
        "semantic",
        "the core has a stream of its own, and what comes of each in a worker is a decision",
        lambda config: False,  # noqa: ARG005 - the same for every configuration
    ),
    Unhooked(
        "KV and weight transfer, expert rebalancing",
        "semantic",
        "they follow no step of the model",
        lambda config: bool(config.parallel_config.enable_eplb),
    ),
)
