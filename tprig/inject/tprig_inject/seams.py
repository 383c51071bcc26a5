"""The private names of vLLM that we rest on: one table, checked before it is used.

A seam that has moved is not an error by itself. It is reported with what was expected and found,
and only the evidence that rests on it becomes unknown.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Seam:
    """A callable in vLLM: where it is, and the parameters we rely on, in order."""

    module: str
    attribute: str
    """Dotted below the module: `Class.method` or `function`."""
    parameters: tuple[str, ...]

    @property
    def target(self) -> str:
        """`module:attribute`."""
        return f"{self.module}:{self.attribute}"


_GPU = "vllm.v1.worker.gpu"

_PARALLEL = "vllm.distributed.parallel_state"
_DEVICE = "vllm.distributed.device_communicators"


def _group(method: str, *parameters: str) -> Seam:
    return Seam(_PARALLEL, f"GroupCoordinator.{method}", ("self", *parameters))


def _shm(method: str, *parameters: str) -> Seam:
    target = f"{_DEVICE}.cpu_communicator"
    return Seam(target, f"_CPUSHMDistributed.{method}", ("self", *parameters))


def _nccl(method: str, *parameters: str) -> Seam:
    parameters = ("self", *parameters, "comm", "stream")
    return Seam(f"{_DEVICE}.pynccl_wrapper", f"NCCLLibrary.nccl{method}", parameters)


_BUFFERS = ("sendbuff", "recvbuff")

COLLECTIVE_SEAMS: Mapping[str, Seam] = {
    "group.all_reduce": _group("_all_reduce_out_place", "input_"),
    "group.all_gather": _group("_all_gather_out_place", "input_", "dim"),
    "group.reduce_scatter": _group("_reduce_scatter_out_place", "input_", "dim"),
    "group.all_gatherv": _group("all_gatherv", "input_", "dim", "sizes"),
    "group.reduce_scatterv": _group("reduce_scatterv", "input_", "dim", "sizes"),
    "group.gather": _group("gather", "input_", "dst", "dim"),
    "group.broadcast": _group("broadcast", "input_", "src"),
    "group.broadcast_object": _group("broadcast_object", "obj", "src"),
    "group.broadcast_object_list": _group("broadcast_object_list", "obj_list", "src"),
    "group.broadcast_tensor_dict": _group("broadcast_tensor_dict", "tensor_dict", "src"),
    "group.send": _group("send", "tensor", "dst"),
    "group.recv": _group("recv", "size", "dtype", "src"),
    "group.barrier": _group("barrier"),
    "cpu_shm.all_reduce": _shm("all_reduce", "input"),
    "cpu_shm.gather": _shm("gather", "input", "gather_list", "dst"),
    "cpu_shm.all_gather": _shm("all_gather_into_tensor", "output", "input"),
    "message_queue.broadcast_object": Seam(
        f"{_DEVICE}.shm_broadcast", "MessageQueue.broadcast_object", ("self", "obj")
    ),
    **{
        f"torch.{name}": Seam("torch.distributed", name, parameters)
        for name, parameters in {
            "all_reduce": ("tensor", "op", "group"),
            "all_gather_into_tensor": ("output_tensor", "input_tensor", "group"),
            "gather": ("tensor", "gather_list", "dst", "group"),
            "reduce_scatter_tensor": ("output", "input", "op", "group"),
            "broadcast": ("tensor", "src", "group"),
            "broadcast_object_list": ("object_list", "src", "group"),
            "send": ("tensor", "dst", "group"),
            "recv": ("tensor", "src", "group"),
            "barrier": ("group",),
            "all_to_all_single": (
                *("output", "input", "output_split_sizes", "input_split_sizes", "group"),
            ),
        }.items()
    },
    "nccl.all_reduce": _nccl("AllReduce", *_BUFFERS, "count", "datatype", "op"),
    "nccl.reduce": _nccl("Reduce", *_BUFFERS, "count", "datatype", "op", "root"),
    "nccl.reduce_scatter": _nccl("ReduceScatter", *_BUFFERS, "count", "datatype", "op"),
    "nccl.all_gather": _nccl("AllGather", *_BUFFERS, "count", "datatype"),
    "nccl.send": _nccl("Send", "sendbuff", "count", "datatype", "dest"),
    "nccl.recv": _nccl("Recv", "recvbuff", "count", "datatype", "src"),
    "nccl.broadcast": _nccl("Broadcast", *_BUFFERS, "count", "datatype", "root"),
    "custom.all_reduce": Seam(
        f"{_DEVICE}.custom_all_reduce", "CustomAllreduce.custom_all_reduce", ("self", "input")
    ),
    "custom.all_gather": Seam(
        f"{_DEVICE}.custom_all_reduce", "CustomAllreduce.custom_all_gather", ("self", "inp")
    ),
    "custom.reduce_scatter": Seam(
        f"{_DEVICE}.custom_all_reduce", "CustomAllreduce.custom_reduce_scatter", ("self", "inp")
    ),
    "quick.all_reduce": Seam(
        f"{_DEVICE}.quick_all_reduce", "QuickAllReduce.quick_all_reduce", ("self", "inp")
    ),
    "symm_mem.all_reduce": Seam(
        f"{_DEVICE}.symm_mem", "SymmMemCommunicator.all_reduce", ("self", "inp")
    ),
    "flashinfer.all_reduce": Seam(
        f"{_DEVICE}.flashinfer_all_reduce",
        "FlashInferAllReduce.all_reduce",
        ("self", "input_tensor"),
    ),
    "flashinfer_pcie.all_reduce": Seam(
        f"{_DEVICE}.flashinfer_pcie_ipc_all_reduce",
        "FlashInferPcieIpcAllReduce.all_reduce",
        ("self", "inp"),
    ),
    "graph.capture_begin": Seam("torch.cuda", "CUDAGraph.capture_begin", ("self",)),
    "graph.capture_end": Seam("torch.cuda", "CUDAGraph.capture_end", ("self",)),
    "graph.replay": Seam("torch.cuda", "CUDAGraph.replay", ("self",)),
}
"""Where collectives pass, on any platform."""

SEAMS: Mapping[str, Seam] = {
    **COLLECTIVE_SEAMS,
    "message_queue.enqueue": Seam(
        f"{_DEVICE}.shm_broadcast", "MessageQueue.enqueue", ("self", "obj")
    ),
    "model_runner.dispatch": Seam(
        f"{_GPU}.model_runner",
        "dispatch_cg_and_sync_dp",
        ("cudagraph_manager", "num_reqs", "num_tokens"),
    ),
    "speculator.propose": Seam(
        f"{_GPU}.spec_decode.speculator", "BaseSpeculator.propose", ("self", "input_batch")
    ),
    "model_runner.execute_model": Seam(
        f"{_GPU}.model_runner", "GPUModelRunner.execute_model", ("self", "scheduler_output")
    ),
    "model_runner.sample": Seam(
        f"{_GPU}.model_runner",
        "GPUModelRunner.sample",
        ("self", "hidden_states", "input_batch", "grammar_output"),
    ),
    "rejection_sampler.verify": Seam(
        f"{_GPU}.spec_decode.rejection_sampler",
        "RejectionSampler._verify",
        ("self", "logits", "draft_logits", "draft_sampled"),
    ),
    "rejection_sampler.call": Seam(
        f"{_GPU}.spec_decode.rejection_sampler",
        "RejectionSampler.__call__",
        ("self", "logits", "input_batch", "draft_logits"),
    ),
    "rejection_sampler.rejection_sample": Seam(
        f"{_GPU}.spec_decode.rejection_sampler",
        "rejection_sample",
        (
            *("target_logits", "draft_logits", "draft_sampled", "cu_num_logits", "pos"),
            *("idx_mapping", "expanded_idx_mapping", "expanded_local_pos", "temperature", "seed"),
        ),
    ),
    "rejection_sampler.max_chunk_logits": Seam(
        f"{_GPU}.spec_decode.rejection_sampler", "get_max_chunk_logits", ("vocab_size",)
    ),
    "rejection_sampler.init": Seam(
        f"{_GPU}.spec_decode.rejection_sampler",
        "RejectionSampler.__init__",
        ("self", "sampler", "spec_config", "device"),
    ),
    "sampler.init": Seam(
        f"{_GPU}.sample.sampler",
        "Sampler.__init__",
        ("self", "vllm_config", "max_num_reqs", "vocab_size", "device", "req_states"),
    ),
    "request_state.init": Seam(
        f"{_GPU}.states",
        "RequestState.__init__",
        (
            *("self", "max_num_reqs", "max_model_len", "max_num_batched_tokens"),
            *("num_speculative_steps", "vocab_size", "device"),
        ),
    ),
    "sampler.sample": Seam(
        f"{_GPU}.sample.sampler", "Sampler.sample", ("self", "logits", "expanded_idx_mapping")
    ),
    "sampling_mask.from_logits": Seam(
        f"{_GPU}.sample.output",
        "SamplingMaskTensors.from_logits",
        ("logits", "cu_num_logits", "num_sampled_tokens", "max_num_kept"),
    ),
    "sampling_mask.tolists": Seam(
        f"{_GPU}.sample.output", "SamplingMaskTensors.tolists", ("self", "num_sampled_tokens")
    ),
    "sampling_states.apply_top_k_top_p": Seam(
        f"{_GPU}.sample.states",
        "SamplingStates.apply_top_k_top_p",
        ("self", "logits", "expanded_idx_mapping"),
    ),
    "sampling_mask.slice_request": Seam(
        "vllm.v1.outputs", "SamplingMaskLists.slice_request", ("self", "req_idx", "num_positions")
    ),
    "model_runner.sample_tokens": Seam(
        f"{_GPU}.model_runner", "GPUModelRunner.sample_tokens", ("self", "grammar_output")
    ),
    "model_runner.postprocess_sampled": Seam(
        f"{_GPU}.model_runner", "GPUModelRunner.postprocess_sampled", ("self", "idx_mapping")
    ),
    "async_output.init": Seam(
        f"{_GPU}.async_utils",
        "AsyncOutput.__init__",
        (
            *("self", "model_runner_output", "sampler_output", "num_sampled_tokens"),
            *("main_stream", "copy_stream"),
        ),
    ),
    "scheduler.schedule": Seam("vllm.v1.core.sched.scheduler", "Scheduler.schedule", ("self",)),
    "llm_engine.add_request": Seam(
        "vllm.v1.engine.llm_engine",
        "LLMEngine.add_request",
        ("self", "request_id", "prompt", "params"),
    ),
    "spec_decoding_stats.observe_draft": Seam(
        "vllm.v1.spec_decode.metrics",
        "SpecDecodingStats.observe_draft",
        ("self", "num_draft_tokens", "num_accepted_tokens"),
    ),
    "custom.should_custom_ar": Seam(
        f"{_DEVICE}.custom_all_reduce", "CustomAllreduce.should_custom_ar", ("self", "inp")
    ),
    "linear.all_reduce": Seam(
        "vllm.model_executor.layers.linear", "tensor_model_parallel_all_reduce", ("input_",)
    ),
    "async_output.get_output": Seam(f"{_GPU}.async_utils", "AsyncOutput.get_output", ("self",)),
    "logits_processor.gather": Seam(
        "vllm.model_executor.layers.logits_processor",
        "LogitsProcessor._gather_logits",
        ("self", "logits"),
    ),
}


class SeamMovedError(RuntimeError):
    """A seam does not look as expected."""


@dataclass(frozen=True)
class Found:
    """A seam as it is in the installed vLLM."""

    seam: Seam
    owner: Any
    """The class or module that holds the callable; None when there is none."""
    found: str
    """The signature found, or why there is none."""
    ok: bool


def with_overrides(overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Seam]:
    """The table with new shapes declared for some seams.

    Args:
        overrides: seam name -> any of `module`, `attribute`, `parameters`.

    Raises:
        SeamMovedError: for a name that is not in the table.
    """
    table = dict(SEAMS)
    for name, changes in overrides.items():
        if name not in table:
            known = ", ".join(sorted(table))
            raise SeamMovedError(f"unknown seam {name!r}: expected one of {known}")
        seam = table[name]
        table[name] = Seam(
            changes.get("module", seam.module),
            changes.get("attribute", seam.attribute),
            tuple(changes.get("parameters", seam.parameters)),
        )
    return table


def locate(seam: Seam) -> Found:
    """Look a seam up in the installed vLLM; never raises for a seam that has moved."""
    try:
        owner: Any = importlib.import_module(seam.module)
    except Exception as error:  # noqa: BLE001 - a module under test may fail in any way
        return Found(seam, None, f"{type(error).__name__}: {error}", ok=False)
    *path, name = seam.attribute.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    raw = getattr(owner, name, None) if owner is not None else None
    if raw is None:
        return Found(seam, None, f"no {seam.attribute} in {seam.module}", ok=False)
    return _compare(seam, owner, raw)


def _compare(seam: Seam, owner: Any, raw: Any) -> Found:
    try:
        names = tuple(inspect.signature(raw).parameters)
    except (TypeError, ValueError) as error:
        return Found(seam, owner, f"no signature: {error}", ok=False)
    ok = names[: len(seam.parameters)] == seam.parameters
    return Found(seam, owner, f"({', '.join(names)})", ok=ok)


def standing(table: Mapping[str, Seam]) -> dict[str, Any]:
    """What stands at each seam that looks as expected: a function, classmethod or staticmethod."""
    located = {name: locate(seam) for name, seam in table.items()}
    return {
        name: inspect.getattr_static(found.owner, found.seam.attribute.rpartition(".")[2])
        for name, found in located.items()
        if found.ok
    }


def report(table: Mapping[str, Seam]) -> list[dict[str, Any]]:
    """One `seam` record per seam, as the evidence schema has it."""
    records = []
    for name, seam in sorted(table.items()):
        found = locate(seam)
        expected = f"({', '.join(seam.parameters)}, ...)"
        records.append(
            {
                "type": "seam",
                "name": name,
                "target": seam.target,
                "expected": expected,
                "found": found.found,
                "ok": found.ok,
            }
        )
    return records
