"""Takes a call of the rejection sampler: what it reads, before it runs, and what it returned."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

from tprig_inject.oracle import rebuild
from tprig_inject.recorders.verification import external_id


class UncapturableError(RuntimeError):
    """A call reads what a record cannot hold, or cannot be told from."""


def size_bytes(logits: Any, batch: Any, draft_logits: Any) -> int:
    """About how much a record of the call holds; what is left out is small."""
    own = logits.numel() * logits.element_size()
    processed = logits.numel() * 4
    if draft_logits is None:
        return int(own + processed)
    row = draft_logits[0].numel() * draft_logits.element_size()
    return int(own + processed + batch.num_reqs * row)


def inputs(
    sampler: Any, logits: Any, batch: Any, draft_logits: Any, invalid_drafts: Any
) -> dict[str, Any]:
    """Everything that the call reads, copied.

    Args:
        sampler: the `RejectionSampler`.
        logits: `[N, V]`, raw.
        batch: the `InputBatch`.
        draft_logits: `[slots, K, V]`, or None when drafts are greedy.
        invalid_drafts: `[N]`, or None.

    Raises:
        UncapturableError: if it depends on what a record does not hold.
    """
    _check(sampler, batch)
    taken = rebuild.batch_inputs(batch) | rebuild.state_inputs(sampler.sampler, batch)
    taken["logits"] = logits
    if draft_logits is not None:
        taken["draft_logits"] = draft_logits[batch.idx_mapping.long()]
    if invalid_drafts is not None:
        taken["invalid_drafts"] = invalid_drafts
    if sampler.synthetic_conditional_rates is not None:
        taken["synthetic_conditional_rates"] = sampler.synthetic_conditional_rates
    taken["rng"] = rebuild.rng_state(logits.device)
    return rebuild.on_cpu(taken)


def _check(sampler: Any, batch: Any) -> None:
    inner = sampler.sampler
    kinds = [type(p).__name__ for p in inner.logits_processors]
    faults = {
        "adaptive verification": getattr(sampler, "enable_adaptive_verification", False),
        "a watermark": getattr(sampler, "watermark_key", None) is not None,
        "a thinking budget": getattr(inner.thinking_budget_state, "enabled", False),
        "NaN counts": inner.compute_nans,
        f"logits processors {kinds}": kinds != _PROCESSORS,
        "host copies that differ from the device's": _host_and_device_differ(inner, batch),
    }
    for fault, found in faults.items():
        if found:
            raise UncapturableError(f"the call depends on {fault}, which a record does not hold")


_PROCESSORS = ["LogitBiasState", "PenaltiesState", "BadWordsState"]


def _host_and_device_differ(sampler: Any, batch: Any) -> bool:
    rows, slots = batch.idx_mapping.long(), batch.idx_mapping_np
    return any(
        (buffer.gpu[rows].cpu().numpy() != buffer.np[slots]).any()
        for buffer in rebuild.uva_backed(sampler).values()
    )


def flags(sampler: Any, logits: Any, chunk_logits: int) -> dict[str, Any]:
    """How the samplers are configured, and where the call runs."""
    import vllm

    inner = sampler.sampler
    states = inner.req_states
    return {
        "vllm_version": vllm.__version__,
        "device": logits.device.type,
        "device_name": device_name(logits.device.type),
        "vocab_size": int(states.vocab_size),
        "max_num_reqs": int(states.max_num_reqs),
        "max_model_len": int(states.max_model_len),
        "num_speculative_steps": int(sampler.num_speculative_steps),
        "logprobs_mode": str(inner.logprobs_mode),
        "use_fp64_gumbel": bool(inner.use_fp64_gumbel),
        "return_sampling_mask": bool(getattr(inner, "return_sampling_mask", False)),
        "verification": _verification(sampler),
        "top_k_ties": top_k_ties(),
        "chunk_logits": chunk_logits,
        "logits_stride": int(logits.stride(0)),
    }


def top_k_ties() -> str:
    """Which tokens that tie at the top-k edge are kept: vLLM's Triton path keeps exactly k."""
    from vllm.v1.sample.ops import topk_topp_sampler

    return "exact" if topk_topp_sampler.HAS_TRITON else "all"


@cache
def device_name(device: str) -> str:
    """The model of the processor that kernels run on."""
    import torch

    if device == "cuda":
        return str(torch.cuda.get_device_name())
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _verification(sampler: Any) -> str:
    if sampler.synthetic_conditional_rates is not None:
        return "synthetic"
    return "block" if getattr(sampler, "use_block_verification", False) else "standard"


def outputs(output: Any, chunks: list[rebuild.Chunk], device: Any) -> dict[str, Any]:
    """Everything that the call returned, with the generator's state after it."""
    return rebuild.outputs(output, chunks) | {"rng_after": rebuild.rng_state(device)}


def request_ids(batch: Any) -> list[str]:
    """The client's ids of the batch's requests."""
    return [external_id(request) for request in batch.req_ids]
