"""What Triton's interpreter does needlessly at each operation, left out."""

from __future__ import annotations

import dataclasses
import math
from typing import Any


def patch_language_once() -> None:
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


def skip_overflow_checks() -> None:
    """Each integer addition and product is computed again in 64 bits to assert its range.

    vLLM's hashes overflow on purpose and say so; compiled kernels have no such check.
    """
    from triton.runtime import interpreter

    options = interpreter.interpreter_builder.options
    interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)


def remember_types() -> None:
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
