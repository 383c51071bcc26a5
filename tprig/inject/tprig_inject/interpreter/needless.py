"""What Triton's interpreter does needlessly at each operation, left out."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
from typing import Any

from tprig_inject.interpreter import shortcuts
from tprig_inject.seams import Seam, locate

_RUNTIME = "triton.runtime.interpreter"


def _runtime(attribute: str, *parameters: str) -> Seam:
    return Seam(_RUNTIME, attribute, parameters)


def _builder(method: str, *parameters: str) -> Seam:
    return Seam(_RUNTIME, f"InterpreterBuilder.{method}", ("self", *parameters))


def leave_out() -> list[str]:
    """Leave out what is needless; where Triton is not as expected, Triton does as it does.

    Returns:
        What was found elsewhere than expected, one line for each, as the log has it too.
    """
    notes = []
    for shorten, seams in _SHORTENED:
        moved = [found for found in map(locate, seams) if not found.ok]
        notes += [
            f"{shorten.__name__}: expected {found.seam.target}({', '.join(found.seam.parameters)}),"
            f" found {found.found}: kernels are interpreted more slowly"
            for found in moved
        ]
        if not moved:
            shorten()
    for note in notes:
        logging.getLogger(__name__).warning(note)
    return notes


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


_SHORTENED: tuple[tuple[Callable[[], object], tuple[Seam, ...]], ...] = (
    (
        patch_language_once,
        (_runtime("_patch_lang", "fn"), _runtime("_LangPatchScope")),
    ),
    (skip_overflow_checks, (_runtime("InterpreterOptions"),)),
    (
        remember_types,
        (
            _runtime("_get_np_dtype"),
            Seam("triton.language.core", "tensor", ("handle",)),
        ),
    ),
    (
        shortcuts.install,
        (
            _runtime("_patch_attr", "obj", "name", "member", "builder", "scope"),
            _runtime("_patch_lang_tensor", "tensor", "scope"),
            _runtime("TensorHandle", "data", "dtype", "attr"),
            _builder("binary_op", "lhs", "rhs", "op"),
            _builder("unary_op", "arg", "op"),
            _builder("ternary_op", "lhs", "rhs", "other", "op"),
            _builder("cast_impl", "src", "dst_type"),
            _builder("create_addptr", "ptr", "offset"),
            _builder("create_splat", "ret_ty", "arg"),
            _builder("create_load", "ptr", "cache_policy", "is_volatile"),
            _builder("create_masked_load", "ptrs", "mask", "other", "cache_policy", "is_volatile"),
            Seam("triton.language.semantic", "TritonSemantic.to_tensor", ("self", "x")),
            Seam("triton.language.core", "tensor", ("handle",)),
        ),
    ),
)
"""What is left out, and the names of Triton that each rests on."""
