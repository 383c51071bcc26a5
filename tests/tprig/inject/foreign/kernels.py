"""Runs kernels in Triton's interpreter, as it is and with what it lacks supplied."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
from tprig_inject import interpreter as ours
from tprig_inject.interpreter import missing, needless
from triton import language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, interpreter_builder
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
from vllm.v1.worker.gpu.sample.logprob import compute_token_logprobs
from vllm.v1.worker.gpu.sample.output import SamplingMaskTensors
from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils

tldevice = rejection_sampler_utils.tldevice
SIZE = 8


@triton.jit  # type: ignore[untyped-decorator]
def _masked_load(target: Any, source: Any, flags: Any, BLOCK: tl.constexpr) -> None:  # noqa: N803
    offsets = tl.arange(0, BLOCK)
    flag = tl.load(flags + offsets)
    tl.store(target + offsets, tl.load(source + offsets, mask=flag, other=-1))


@triton.jit  # type: ignore[untyped-decorator]
def _log1p(target: Any, source: Any, BLOCK: tl.constexpr) -> None:  # noqa: N803
    offsets = tl.arange(0, BLOCK)
    tl.store(target + offsets, tldevice.log1p(tl.load(source + offsets)))


@triton.jit  # type: ignore[untyped-decorator]
def _doubled(value: Any) -> Any:
    return value * 2


@triton.jit  # type: ignore[untyped-decorator]
def _calls_another(target: Any, BLOCK: tl.constexpr) -> None:  # noqa: N803
    offsets = tl.arange(0, BLOCK)
    tl.store(target + offsets, _doubled(offsets) + tl.program_id(0))


def masked_load(dtype: str, *, supplied: bool) -> list[int] | str:
    """0 to 7, -1 where a flag of that dtype is 0; or the error."""
    if supplied:
        ours.supply()
    flags = torch.tensor([1, 0, 1, 0, 0, 2, 1, 0]).to(getattr(torch, dtype))
    target = torch.zeros(SIZE, dtype=torch.int64)
    try:
        _masked_load[(1,)](target, torch.arange(SIZE), flags, BLOCK=SIZE)
    except Exception as error:
        return str(error)
    values: list[int] = target.tolist()
    return values


def masked_store(*, supplied: bool) -> list[int] | str:
    """1 where an integer mask is not 0, at the interpreter's own store; or the error."""
    if supplied:
        ours.supply()
    target = np.zeros(3, dtype=np.int64)
    addresses = target.ctypes.data + np.arange(3, dtype=np.uint64) * 8
    pointers = TensorHandle(addresses.astype(np.uint64), tl.pointer_type(tl.int64))
    mask = TensorHandle(np.array([1, 0, 2], dtype=np.int8), tl.int1)
    ones = TensorHandle(np.ones(3, dtype=np.int64), tl.int64)
    try:
        interpreter_builder.create_masked_store(pointers, ones, mask, None)
    except Exception as error:
        return str(error)
    values: list[int] = target.tolist()
    return values


def log1p(values: list[float], *, supplied: bool) -> list[float] | str:
    """`libdevice.log1p`, as the rejection sampler's kernels know it; or the error."""
    global tldevice  # noqa: PLW0603 - a kernel finds it among its module's names
    if supplied:
        ours.supply()
        tldevice = rejection_sampler_utils.tldevice
    source = torch.tensor(values, dtype=torch.float64)
    target = torch.zeros_like(source)
    try:
        _log1p[(1,)](target, source, BLOCK=len(values))
    except Exception as error:
        return str(error)
    result: list[float] = target.tolist()
    return result


def calls_another() -> list[list[int]]:
    """Three launches of a kernel that calls a device function, the language staying patched."""
    ours.supply()
    results = []
    for _ in range(3):
        target = torch.zeros(SIZE, dtype=torch.int32)
        _calls_another[(2,)](target, BLOCK=SIZE)
        results.append(target.tolist())
    return results


def language_patches(*, supplied: bool) -> int:
    """How often the language is patched in three launches of a kernel that calls another."""
    count = 0
    original = interpreter._patch_builtin

    def counted(*args: Any) -> Any:
        nonlocal count
        count += 1
        return original(*args)

    interpreter._patch_builtin = counted
    if supplied:
        ours.supply()
    for _ in range(3):
        _calls_another[(1,)](torch.zeros(SIZE, dtype=torch.int32), BLOCK=SIZE)
    return count


def sampled(*, supplied: bool) -> dict[str, Any]:
    """What kernels of vLLM make of random logits: hashes that overflow, scans, bit masks."""
    if supplied:
        ours.supply()
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn((3, 200), generator=generator)
    logits[logits < 1.0] = -np.inf
    mask = SamplingMaskTensors.from_logits(
        logits, torch.tensor([0, 1, 2, 3]), torch.tensor([1, 1, 1]), 50
    )
    rows = torch.arange(3)
    chosen = gumbel_sample(
        logits,
        rows,
        torch.tensor([0.7, 1.0, 1.3]),
        torch.tensor([2**62 + 1, 5, 2**31]),
        torch.tensor([0, 17, 2**20]),
        apply_temperature=True,
        is_drafting=False,
    )
    return {
        "supports": mask.tolists().to_nested_list(),
        "expected": [torch.isfinite(row).nonzero().flatten().tolist() for row in logits],
        "chosen": chosen.tolist(),
    }


def verified(*, seed: int, shortcuts: bool) -> dict[str, Any]:
    """What vLLM's verification, resampling and logprobs make of drawn logits, in bytes."""
    if shortcuts:
        ours.supply()
    else:
        missing.cast_masks_to_bool()
        missing.supply_log1p()
        needless.skip_overflow_checks()
    generator = torch.Generator().manual_seed(seed)
    requests, drafts, vocabulary = 3, 2, 1300
    rows = requests * (drafts + 1)
    logits = torch.randn((rows, vocabulary), generator=generator) * 4
    logits[logits < -2.0] = -np.inf
    told: dict[str, Any] = {}
    for name, draft_logits in (
        ("greedy", None),
        ("probabilistic", torch.randn((requests, drafts, vocabulary), generator=generator) * 4),
    ):
        tokens, counts = rejection_sampler_utils.rejection_sample(
            logits.clone(),
            draft_logits,
            torch.randint(0, vocabulary, (rows,), generator=generator),
            torch.arange(0, rows + 1, drafts + 1, dtype=torch.int32),
            torch.arange(rows),
            torch.arange(requests),
            torch.arange(requests).repeat_interleave(drafts + 1),
            torch.arange(drafts + 1).repeat(requests),
            torch.tensor([0.7, 1.0, 1.3]),
            torch.randint(0, 2**62, (requests,), generator=generator),
            drafts,
        )
        told[name] = [row[:n] for row, n in zip(tokens.tolist(), counts.tolist(), strict=True)]
    ids = torch.randint(0, vocabulary, (rows, 7), generator=generator)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = compute_token_logprobs(logits.to(dtype), ids)
        told[str(dtype)] = found.numpy().tobytes().hex()
    return told


def options() -> dict[str, Any]:
    """What is switched off where, before and after."""
    told = {}
    for moment in ("before", "after"):
        interpreted = interpreter_builder.options
        told[moment] = {
            "sanitize_overflow": interpreted.sanitize_overflow,
            "others": repr(interpreted)
            .replace("sanitize_overflow=True", "")
            .replace("sanitize_overflow=False", ""),
            "top-p kernel": topk_topp_sampler.HAS_TRITON,
        }
        ours.supply()
    return told
