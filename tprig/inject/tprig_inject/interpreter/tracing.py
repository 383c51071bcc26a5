"""Runs one of Triton's builtins as Triton wrote it, and keeps the steps that reached the builder.

The semantic layer decides by types, shapes and Python numbers which of the builder's methods to
call. Whoever has seen it decide once for some types knows the steps for all operands of those
types. Where a decision rests on the operands' values, there are no steps to know.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Compute = Callable[..., Any]
"""Arrays to an array."""

FOLDED = frozenset(
    {
        *("create_splat", "create_make_range", "create_expand_dims", "create_broadcast"),
        *("create_bitcast", "create_fp_to_fp", "create_int_cast", "create_fp_trunc"),
        *("create_fp_ext", "create_si_to_fp", "create_ui_to_fp", "create_fp_to_si"),
        *("create_fp_to_ui", "create_reshape", "create_trans"),
    }
)
"""Methods whose result is the same each time if their operands are."""


@dataclass(frozen=True)
class Step:
    """A call of the builder.

    `compute` takes the arrays of the operands or, where `whole`, the handles themselves, and then
    gives what the builder's method gives.
    """

    compute: Compute
    operands: tuple[int, ...]
    """Where the operands are: operands of the builtin first, then constants and results."""
    dtype: Any
    """The Triton type of the result's handle."""
    whole: bool = False


@dataclass
class Trace:
    """What happened in one call of a builtin.

    Attributes:
        places: by the id of a handle, its place among operands, constants and results.
        constants: handles that depend on nothing, by place.
        steps: in order, each with the place of its result.
        sound: whether the steps say everything that the call did.
    """

    places: dict[int, int] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)
    steps: list[tuple[int, Step]] = field(default_factory=list)
    sound: bool = True
    kept: list[Any] = field(default_factory=list)
    depth: int = 0

    def place(self, handle: Any) -> int:
        """A new place for a handle, which is kept so that its id stays its own."""
        self.kept.append(handle)
        self.places[id(handle)] = len(self.kept) - 1
        return len(self.kept) - 1

    def keep(self, result: Any, step: Step, *, folded: bool) -> None:
        """Add a step; where all its operands are constants, its result is one if it is `folded`."""
        place = self.place(result)
        if folded and all(operand in self.constants for operand in step.operands):
            if isinstance(result.data, np.ndarray):
                result.data.setflags(write=False)
            self.constants[place] = result
        else:
            self.steps.append((place, step))


class Tracing:
    """Stands where Triton's builder and semantic layer stand while a builtin is traced.

    Attributes:
        trace: of the call that is being traced; None while none is.
        semantic: Triton's semantic layer over a builder that keeps what it is asked for.
    """

    def __init__(self) -> None:
        from triton.runtime import interpreter

        self._triton = interpreter
        self._handle = interpreter.TensorHandle
        self.trace: Trace | None = None
        builder: Any = object.__new__(self._builder_type())
        # The grid, the options and whatever else there is are those of the one builder.
        builder.__dict__ = interpreter.interpreter_builder.__dict__
        self.semantic = type(interpreter.interpreter_semantic)(builder)

    def spoil(self) -> None:
        """A value was looked at: what is traced may differ for other values."""
        if self.trace is not None:
            self.trace.sound = False

    def _builder_type(self) -> type:
        base = type(self._triton.interpreter_builder)
        members = inspect.getmembers(base, inspect.isfunction)
        whole = {
            name: self._whole(name, member)
            for name, member in members
            if name.startswith(("create_", "get_"))
        }
        return type("TracedBuilder", (base,), whole | self._primitives(base))

    def _whole(self, name: str, method: Compute) -> Compute:
        """A method that keeps its call unless the primitives under it have kept all of it."""
        asks_only = name.startswith("get_")

        def traced(builder: Any, *args: Any, **options: Any) -> Any:
            trace = self.trace
            if trace is None or trace.depth:
                return method(builder, *args, **options)
            kept, steps = len(trace.kept), len(trace.steps)
            trace.depth += 1
            try:
                result = method(builder, *args, **options)
            finally:
                trace.depth -= 1
            if trace.places.get(id(result), -1) >= kept:
                return result
            del trace.steps[steps:]
            if isinstance(result, self._handle) or not asks_only:
                folded = asks_only or name in FOLDED
                self._keep_whole(trace, method, (args, options), result, folded=folded)
            return result

        return traced

    def _keep_whole(
        self,
        trace: Trace,
        method: Compute,
        asked: tuple[tuple[Any, ...], dict[str, Any]],
        result: Any,
        *,
        folded: bool,
    ) -> None:
        args, options = asked
        at = [i for i, arg in enumerate(args) if isinstance(arg, self._handle)]
        operands = tuple(trace.places.get(id(args[i]), -1) for i in at)
        plain = isinstance(result, self._handle) or result is None
        if -1 in operands or not plain or any(map(self._hides, (*args, *options.values()))):
            trace.sound = False
            return
        template, builder = list(args), self._triton.interpreter_builder

        def call(*handles: Any) -> Any:
            given = template.copy()
            for i, handle in zip(at, handles, strict=True):
                given[i] = handle
            return method(builder, *given, **options)

        for i in at:
            template[i] = None
        dtype = None if result is None else result.dtype
        if result is None:
            result = self._handle.__new__(self._handle)
            folded = False
        trace.keep(result, Step(call, operands, dtype, whole=True), folded=folded)

    def _hides(self, argument: Any) -> bool:
        """Whether handles may be where they are not looked for."""
        found = isinstance(argument, list | tuple | dict)
        return found and any(not isinstance(item, int) for item in argument)

    def _record(
        self, result: Any, handles: tuple[Any, ...], compute: Compute, *, folded: bool = True
    ) -> Any:
        """Keep a step on arrays, if it does what this Triton's builder did."""
        trace = self.trace
        if trace is not None:
            operands = tuple(trace.places.get(id(handle), -1) for handle in handles)
            if -1 not in operands and _same(compute(*[h.data for h in handles]), result.data):
                step = Step(compute, operands, result.dtype)
                trace.keep(result, step, folded=folded)
        return result

    def _primitives(self, base: Any) -> dict[str, Compute]:
        """What most methods of the builder come down to, without its looking at types again."""
        record = self._record

        def binary_op(builder: Any, lhs: Any, rhs: Any, op: Any) -> Any:
            result = base.binary_op(builder, lhs, rhs, op)
            bools = lhs.data.dtype == np.bool_ == rhs.data.dtype
            compute = _in_one_bit(op) if bools else op
            return record(result, (lhs, rhs), _to(compute, result.data.dtype))

        def unary_op(builder: Any, arg: Any, op: Any) -> Any:
            return record(base.unary_op(builder, arg, op), (arg,), op)

        def ternary_op(builder: Any, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
            result = base.ternary_op(builder, lhs, rhs, other, op)
            return record(result, (lhs, rhs, other), _to(op, result.data.dtype))

        def cast_impl(builder: Any, src: Any, dst_type: Any) -> Any:
            result = base.cast_impl(builder, src, dst_type)
            kinds = {src.dtype.scalar.name, dst_type.scalar.name}
            if "bf16" in kinds or any(name.startswith("fp8") for name in kinds):
                return result
            dtype = result.data.dtype
            return record(result, (src,), lambda data: data.astype(dtype))

        def create_addptr(builder: Any, ptr: Any, offset: Any) -> Any:
            result = base.create_addptr(builder, ptr, offset)
            width = max(1, ptr.get_element_ty().primitive_bitwidth // 8)
            return record(result, (ptr, offset), _addresses(width))

        def create_splat(builder: Any, ret_ty: Any, arg: Any) -> Any:
            result = base.create_splat(builder, ret_ty, arg)
            if arg.dtype.is_block():
                return result
            return record(result, (arg,), _filled(result.data.shape, result.data.dtype))

        made = (binary_op, unary_op, ternary_op, cast_impl, create_addptr, create_splat)
        named = {function.__name__: function for function in made} | self._memory(base)
        return {
            name: self._whole(name, function) if name.startswith("create_") else function
            for name, function in named.items()
        }

    def _memory(self, base: Any) -> dict[str, Compute]:
        """Loads and stores, whose masks and defaults are made once where they are constants."""
        record, load = self._record, self._triton._interpreter.load

        def create_masked_load(
            builder: Any, ptrs: Any, mask: Any, other: Any, cache_policy: Any, is_volatile: Any
        ) -> Any:
            result = base.create_masked_load(builder, ptrs, mask, other, cache_policy, is_volatile)
            dtype, bools = result.data.dtype, mask.data.dtype == np.bool_
            zeros = np.zeros_like(ptrs.data, dtype=dtype)

            def compute(addresses: Any, flags: Any, default: Any = zeros) -> Any:
                return load(addresses, flags if bools else flags.astype(np.bool_), default, dtype)

            operands = (ptrs, mask) if other is None else (ptrs, mask, other)
            return record(result, operands, compute, folded=False)

        def create_load(builder: Any, ptr: Any, cache_policy: Any, is_volatile: Any) -> Any:
            result = base.create_load(builder, ptr, cache_policy, is_volatile)
            dtype, everywhere = result.data.dtype, np.ones_like(ptr.data, dtype=bool)
            zeros = np.zeros_like(ptr.data, dtype=dtype)
            return record(
                result,
                (ptr,),
                lambda addresses: load(addresses, everywhere, zeros, dtype),
                folded=False,
            )

        return {"create_masked_load": create_masked_load, "create_load": create_load}


def _same(one: Any, other: Any) -> bool:
    alike = type(one) is type(other) and one.dtype == other.dtype and one.shape == other.shape
    return alike and one.tobytes() == other.tobytes()


def _to(op: Compute, dtype: Any) -> Compute:
    """The operation, its result in the dtype that it had in the builder."""

    def compute(*arrays: Any) -> Any:
        output = op(*arrays)
        return output if output.dtype is dtype else output.astype(dtype)

    return compute


def _in_one_bit(op: Compute) -> Compute:
    """The operation on bools as the builder does it: in wider integers, cut to one bit."""

    def compute(lhs: Any, rhs: Any) -> Any:
        return (op(lhs.astype(np.int8), rhs.astype(np.int8)) & 1).astype(np.bool_)

    return compute


def _addresses(width_bytes: int) -> Compute:
    def compute(pointers: Any, offsets: Any) -> Any:
        return pointers + width_bytes * offsets.astype(np.uint64)

    return compute


def _filled(shape: tuple[int, ...], dtype: Any) -> Compute:
    def compute(value: Any) -> Any:
        filled = np.empty(shape, dtype)
        filled[...] = value
        return filled

    return compute
