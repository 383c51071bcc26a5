"""What Triton's interpreter lacks for vLLM's kernels on the CPU, supplied without touching vLLM."""

from __future__ import annotations

from functools import wraps
from types import SimpleNamespace
from typing import Any

import numpy as np


def supply() -> None:
    """Make the kernels of Model Runner V2 run in Triton's interpreter.

    * `_topk_topp_kernel` casts a Python int from `range`, which the interpreter does not wrap:
      vLLM's own PyTorch path takes over where it thinks that Triton is absent.
    * The interpreter loads and stores through masks of any integer type and then indexes with
      them: masks are cast to bool.
    * `libdevice.log1p` has no interpreted form: numpy's is supplied.
    """
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.HAS_TRITON = False
    cast_masks_to_bool()
    supply_log1p()


def cast_masks_to_bool() -> None:
    """Let loads and stores take masks of any integer type."""
    from triton.runtime.interpreter import InterpreterBuilder

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    @wraps(load)
    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        return load(self, ptrs, _as_bool(mask), *rest)

    @wraps(store)
    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        return store(self, ptrs, value, _as_bool(mask), *rest)

    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store


def _as_bool(mask: Any) -> Any:
    if mask.data.dtype == np.bool_:
        return mask
    return type(mask)(mask.data.astype(np.bool_), mask.dtype)


def supply_log1p() -> None:
    """Give `libdevice.log1p` an interpreted form."""
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils

    def log1p(value: Any) -> Any:
        handle = value.handle
        return tl.core.tensor(TensorHandle(np.log1p(handle.data), handle.dtype), value.type)

    rejection_sampler_utils.tldevice = SimpleNamespace(log1p=log1p)
