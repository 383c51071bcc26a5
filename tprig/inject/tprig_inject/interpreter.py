"""What Triton's interpreter lacks for vLLM's kernels on the CPU, supplied without touching vLLM."""

from __future__ import annotations

import dataclasses
import math
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

    And what it does needlessly is left out, which makes a step several times faster and changes
    no result: see `_patch_language_once`, `_skip_overflow_checks` and `_remember_types`.
    """
    from vllm.v1.sample.ops import topk_topp_sampler

    topk_topp_sampler.HAS_TRITON = False
    _cast_masks_to_bool()
    _supply_log1p()
    _patch_language_once()
    _skip_overflow_checks()
    _remember_types()


def _cast_masks_to_bool() -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        return load(self, ptrs, _as_bool(mask), *rest)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        return store(self, ptrs, value, _as_bool(mask), *rest)

    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store


def _as_bool(mask: Any) -> Any:
    if mask.data.dtype == np.bool_:
        return mask
    return type(mask)(mask.data.astype(np.bool_), mask.dtype)


def _supply_log1p() -> None:
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils

    def log1p(value: Any) -> Any:
        handle = value.handle
        return tl.core.tensor(TensorHandle(np.log1p(handle.data), handle.dtype), value.type)

    rejection_sampler_utils.tldevice = SimpleNamespace(log1p=log1p)


def _patch_language_once() -> None:
    """The interpreter replaces Triton's builtins at each launch and at each device-function call.

    It walks all members of the language modules to do so. In a process that only interprets, the
    replacements may as well stay.
    """
    from triton import language as tl
    from triton.runtime import interpreter

    patch, scope = interpreter._patch_lang, interpreter._LangPatchScope
    done: set[int] = set()
    needs: dict[Any, frozenset[int]] = {}

    def patch_once(fn: Any) -> Any:
        if fn not in needs:
            modules = [v for v in fn.__globals__.values() if v is tl or v is tl.core]
            needs[fn] = frozenset(map(id, modules))
        if not needs[fn] <= done:
            patch(fn)
            done.update(needs[fn])
        return scope()

    interpreter._patch_lang = patch_once


def _skip_overflow_checks() -> None:
    """Each integer addition and product is computed again in 64 bits to assert its range.

    vLLM's hashes overflow on purpose and say so; compiled kernels have no such check.
    """
    from triton.runtime import interpreter

    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)


def _remember_types() -> None:
    """Each operation builds a table of dtypes and a tuple for its result's shape anew.

    Both depend on the dtype and the shape alone.
    """
    from triton import language as tl
    from triton.runtime import interpreter

    find_dtype = interpreter._get_np_dtype
    dtypes: dict[Any, Any] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def get_np_dtype(dtype: Any) -> Any:
        scalar = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        if isinstance(scalar, tl.pointer_type):
            return find_dtype(scalar)
        if scalar not in dtypes:
            dtypes[scalar] = find_dtype(scalar)
        return dtypes[scalar]

    def init(self: Any, handle: Any, dtype: Any) -> None:
        shape = tuple(dtype.shape) if dtype.is_block() else ()
        if shape not in shapes:
            sizes = tl.core.tuple([tl.constexpr(size) for size in shape])
            shapes[shape] = (tl.constexpr(math.prod(shape)), sizes)
        self.handle, self.type, self.dtype = handle, dtype, dtype.scalar
        self.numel, self.shape = shapes[shape]

    interpreter._get_np_dtype = get_np_dtype
    tl.core.tensor.__init__ = init
