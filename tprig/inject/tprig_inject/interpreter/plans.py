"""Does again, for operands of known types, the steps that one call of a builtin came down to.

A plan belongs to one builtin and to the types, shapes and Python arguments of a call. It holds
what Triton itself did in such a call, without the way there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tprig_inject.interpreter.kinds import KIND, Kinds
from tprig_inject.interpreter.tracing import Compute, Trace

Plan = Callable[..., Any]
"""Tensors, in the order of the call, to the result of the builtin."""


class Planner:
    """Makes plans from traces."""

    def __init__(self, kinds: Kinds) -> None:
        from triton import language as tl
        from triton.runtime.interpreter import TensorHandle

        self._kinds = kinds
        self._tensor = tl.core.tensor
        self._handle = TensorHandle

    def plan(self, trace: Trace, operands: Sequence[Any], result: Any) -> Plan | None:
        """The plan of a traced call; None where its steps do not say everything.

        Args:
            trace: of the call.
            operands: the tensors that the call was given, their handles placed in this order.
            result: what the call returned.
        """
        if not trace.sound or type(result) is not self._tensor:
            return None
        returned = [index for index, operand in enumerate(operands) if result is operand]
        if returned:
            return _operand(returned[0])
        if result.handle is None:
            return _runner(trace, _nothing(self._tensor, result.type), self._handle, None)
        place = trace.places.get(id(result.handle))
        if place is None:
            return None
        wrap = self._wrapper(result)
        if place in trace.constants:
            return _constant(result.handle.data, wrap) if not trace.steps else None
        short = _shortest(trace, place, len(operands), wrap)
        return short or _runner(trace, wrap, self._handle, place)

    def _wrapper(self, like: Any) -> Callable[[Any], Any]:
        """Makes tensors like that one of arrays."""
        new, tensor, handle_type = object.__new__, self._tensor, self._handle
        dtype_of_handle, shape, numel = like.handle.dtype, like.shape, like.numel
        type_, dtype, kind = like.type, like.dtype, self._kinds.of(like)

        def wrap(data: Any) -> Any:
            handle, made = new(handle_type), new(tensor)
            handle.__dict__ = {"data": data, "dtype": dtype_of_handle, "attr": {}}
            made.__dict__ = {
                "handle": handle,
                "shape": shape,
                "numel": numel,
                "type": type_,
                "dtype": dtype,
                KIND: kind,
            }
            return made

        return wrap


def _operand(index: int) -> Plan:
    return lambda *tensors: tensors[index]


def _constant(data: Any, wrap: Callable[[Any], Any]) -> Plan:
    return lambda *_: wrap(data)


def _nothing(tensor: Any, type_: Any) -> Callable[[Any], Any]:
    return lambda _: tensor(None, type_)


def _shortest(trace: Trace, place: int, operands: int, wrap: Callable[[Any], Any]) -> Plan | None:
    """A plan of one step with one or two operands, which most are."""
    if len(trace.steps) != 1 or trace.steps[0][0] != place or trace.steps[0][1].whole:
        return None
    step = trace.steps[0][1]
    compute, at = step.compute, step.operands
    fixed = [trace.constants[i].data if i in trace.constants else None for i in at]
    if at == (0,):
        return lambda a, *_: wrap(compute(a.handle.data))
    if operands == 2 and None is fixed[0] is fixed[-1]:
        return _of_two(compute, at, wrap)
    return _with_constant(compute, at, fixed, wrap)


def _of_two(compute: Compute, at: tuple[int, ...], wrap: Callable[[Any], Any]) -> Plan | None:
    if at == (0, 1):
        return lambda a, b: wrap(compute(a.handle.data, b.handle.data))
    if at == (1, 0):
        return lambda a, b: wrap(compute(b.handle.data, a.handle.data))
    return None


def _with_constant(
    compute: Compute, at: tuple[int, ...], fixed: list[Any], wrap: Callable[[Any], Any]
) -> Plan | None:
    if len(at) == 2 and at[0] == 0 and fixed[1] is not None:
        right = fixed[1]
        return lambda a, *_: wrap(compute(a.handle.data, right))
    if len(at) == 2 and at[1] == 0 and fixed[0] is not None:
        left = fixed[0]
        return lambda a, *_: wrap(compute(left, a.handle.data))
    return None


def _runner(trace: Trace, wrap: Callable[[Any], Any], handle_type: Any, result: int | None) -> Plan:
    """A plan of any steps: places are filled one after another."""
    size = len(trace.kept)
    constants = [(place, handle.data) for place, handle in trace.constants.items()]
    dtypes: dict[int, Any] = {place: handle.dtype for place, handle in trace.constants.items()}
    dtypes |= {place: step.dtype for place, step in trace.steps}
    steps = [(place, step, step.operands) for place, step in trace.steps]
    blank: list[Any] = [None] * size
    for place, data in constants:
        blank[place] = data

    def plan(*tensors: Any) -> Any:
        arrays = blank.copy()
        for index, tensor in enumerate(tensors):
            arrays[index] = tensor.handle.data
        for place, step, at in steps:
            if step.whole:
                handles = [
                    tensors[i].handle if i < len(tensors) else handle_type(arrays[i], dtypes[i])
                    for i in at
                ]
                found = step.compute(*handles)
                arrays[place] = None if found is None else found.data
            else:
                arrays[place] = step.compute(*[arrays[i] for i in at])
        return wrap(None if result is None else arrays[result])

    return plan


def bytes_of(trace: Trace) -> int:
    """How much memory a trace's constants take."""
    data = (handle.data for handle in trace.constants.values())
    return sum(array.nbytes for array in data if isinstance(array, np.ndarray))
