"""Runs operations of Triton's language one by one, as Triton interprets them and with shortcuts."""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import triton
from tprig_inject import interpreter as ours
from tprig_inject.interpreter import needless, shortcuts
from triton import language as tl
from triton.language import core, standard
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

Case = tuple[str, Callable[[int], Any]]
"""A name, and what to do in a round: each round has other values of the same types."""

ROUNDS = 2
"""The first is traced, and the other follows the plan."""

SIZE = 8
NAMES = (
    *("int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
FEW = ("int1", "uint32", "int64", "bfloat16", "float32")
BINARY = {
    name: getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor"),
        *("lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne"),
    )
}
NUMBERS = (
    *(0, 1, -1, 127, 256, -129, 2**31 - 1, 2**31, -(2**31) - 1, 2**63, 2**64, True, 1.0),
    *(0.0, -0.0, 1.5, -math.inf, math.nan, 1e300, 1e-45),
)
SHAPES: dict[str, tuple[int, ...]] = {"0d": (), "1d": (8,), "2d": (2, 4), "row": (1, 4)}


@triton.jit  # type: ignore[untyped-decorator]
def _language(x: Any) -> Any:
    return tl.maximum(x, x)


@triton.jit  # type: ignore[untyped-decorator]
def _core(x: Any) -> Any:
    return core.maximum(x, x)


def _tensor(name: str, shape: tuple[int, ...], turn: int) -> Any:
    """A tensor with the extreme values of its dtype among its own, in another order each round."""
    dtype = getattr(tl, name)
    count = max(1, math.prod(shape))
    data = np.resize(np.roll(_values(name), 3 * turn), count).reshape(shape or (1,))
    return tl.tensor(
        TensorHandle(data, dtype), core.block_type(dtype, list(shape)) if shape else dtype
    )


def _values(name: str) -> Any:
    if name == "int1":
        return np.array([True, False, False, True, True])
    if name == "bfloat16":
        wide = _values("float32").view(np.uint32) >> 16
        return wide.astype(np.uint16)
    dtype = np.dtype(name)
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        least = float(np.finfo(dtype).smallest_subnormal)
        odd = [0.0, -0.0, 1.5, -2.25, math.inf, -math.inf, math.nan, most, -most, least, 3.0]
        return np.array(odd, dtype=dtype)
    limits = np.iinfo(dtype)
    return np.array([limits.min, limits.max, 0, 1, 2, 3, 5, 7, limits.max - 1, 40], dtype=dtype)


def _pairs() -> Iterator[Case]:
    more = (("0d", "1d"), ("1d", "0d"), ("0d", "0d"))
    for (op, act), left, right in itertools.product(BINARY.items(), NAMES, NAMES):
        for one, two in (("1d", "1d"), *(more if {left, right} <= set(FEW) else ())):
            yield f"{left} {one} {op} {right} {two}", _Both(act, (left, one), (right, two))


@dataclass(frozen=True)
class _Both:
    """An operation on two tensors, each of a dtype and a shape; or on a number in place of one."""

    act: Callable[[Any, Any], Any]
    left: Any
    right: Any

    def __call__(self, turn: int) -> Any:
        return self.act(self._operand(self.left, turn), self._operand(self.right, turn + 1))

    def _operand(self, what: Any, turn: int) -> Any:
        return _tensor(what[0], SHAPES[what[1]], turn) if isinstance(what, tuple) else what


def _with_numbers() -> Iterator[Case]:
    for (op, act), name, number in itertools.product(BINARY.items(), NAMES, NUMBERS):
        for shape in ("0d", "1d") if name == "int32" else ("1d",):
            case = f"{name} {shape} {op} {number!r}"
            yield case, _Both(act, (name, shape), number)
            yield f"{case}, turned", _Both(act, number, (name, shape))


def _broadcasts() -> Iterator[Case]:
    for op, one, two in itertools.product(("add", "lt", "mul"), SHAPES, SHAPES):
        for name in ("int32", "float32", "int1"):
            yield f"{name} {one} {op} {two}", _Both(BINARY[op], (name, one), (name, two))


def _casts() -> Iterator[Case]:
    for source, target, shape in itertools.product(NAMES, NAMES, ("0d", "1d")):
        for how in ({}, {"bitcast": True}, {"fp_downcast_rounding": "rtz"}):
            case = f"{source} {shape} to {target} {how}"
            yield case, partial(_cast, source, target, SHAPES[shape], how)


def _cast(source: str, target: str, shape: tuple[int, ...], how: dict[str, Any], turn: int) -> Any:
    return _tensor(source, shape, turn).to(getattr(tl, target), **how)


UNARY: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(operator, name) for name in ("neg", "invert")},
    **{
        name: getattr(tl, name)
        for name in ("abs", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "floor", "ceil", "cos")
    },
    **{name: getattr(tl, name) for name in ("sum", "max", "min", "trans", "ravel", "xor_sum")},
    "max at 0": lambda x: tl.max(x, 0),
    "argmax": lambda x: tl.argmax(x, 0),
    "max with its place": lambda x: tl.max(x, 0, return_indices=True),
    "kept": lambda x: tl.sum(x, 0, keep_dims=True),
    "cumsum": lambda x: tl.cumsum(x, 0),
    "turned cumsum": lambda x: tl.cumsum(x, 0, reverse=True),
    "with an axis": lambda x: x[:, None],
    "with an axis before": lambda x: x[None, :] * 2,
    "reshape": lambda x: tl.reshape(x, (2, 4)),
    "broadcast": lambda x: tl.broadcast_to(x, (2, 4)),
    "clamp": lambda x: tl.clamp(x, 0.0, 1.5),
    "itself twice": lambda x: x + x,
    "select": lambda x: tl.where(x > 0, x, 7),
    "select of numbers": lambda x: tl.where(x > 0, 1.0, 0),
    "select by what is no bool": lambda x: tl.where(x, x, 0),
    "maximum": lambda x: tl.maximum(x, 3),
    "minimum": lambda x: tl.minimum(0.5, x),
    "maximum with NaN": lambda x: tl.maximum(x, 1.0, propagate_nan=core.PropagateNan.ALL),
    "fma": lambda x: tl.fma(x, x, x),
    "a constant": lambda x: x * core.constexpr(3),
    "a constant shift": lambda x: x >> core.constexpr(40),
    "both and": lambda x: (x > 0).logical_and(x < 5),
    "zeros": standard.zeros_like,
    "product high": lambda x: tl.umulhi(x, x),
    "random": lambda x: tl.rand(5, x),
    "random by a seed": lambda x: tl.randint(tl.max(x), x),
    "joined": lambda x: tl.join(x, x),
    "split": lambda x: tl.split(tl.reshape(x, (4, 2)))[1],
}


def _unary() -> Iterator[Case]:
    for (op, act), name, shape in itertools.product(UNARY.items(), NAMES, SHAPES):
        if shape == "1d" or name in FEW:
            yield f"{op} {name} {shape}", partial(_on_one, act, name, SHAPES[shape])


def _on_one(act: Callable[[Any], Any], name: str, shape: tuple[int, ...], turn: int) -> Any:
    return act(_tensor(name, shape, turn))


def _made() -> Iterator[Case]:
    for name, number in itertools.product(NAMES, NUMBERS):
        yield f"full {name} {number!r}", partial(_full, name, number)
    for start, end in ((0, 8), (3, 7), (0, 6), (8, 0), (0, 2**33)):
        yield f"{start} to {end}", partial(_range, start, end)
    for number in NUMBERS:
        yield f"tensor of {number!r}", partial(_assigned, number)


def _full(name: str, number: float, _turn: int) -> Any:
    return tl.full((SIZE,), number, getattr(tl, name))


def _range(start: int, end: int, _turn: int) -> Any:
    return tl.arange(start, end)


def _assigned(number: float, _turn: int) -> Any:
    """As an assignment in a kernel has it."""
    return interpreter.interpreter_semantic.to_tensor(number, False)  # noqa: FBT003


def _memory() -> Iterator[Case]:
    masks = {"all": None, "1d": "1d", "0d": "0d", "number": True}
    others = (None, 0, -1, 1.5, -0.0, "0d", "1d")
    for name, (how, mask), other in itertools.product(NAMES, masks.items(), others):
        for shape in ("1d", "0d"):
            case = f"load {name} {shape} {how} {other!r}"
            yield case, partial(_load, name, SHAPES[shape], (mask, other))
    for name, (how, mask), source in itertools.product(NAMES, masks.items(), NAMES):
        yield f"store {source} in {name} {how}", partial(_store, name, source, mask)


def _pointers(name: str, shape: tuple[int, ...], memory: Any) -> Any:
    dtype = tl.pointer_type(getattr(tl, name))
    base = tl.tensor(TensorHandle(np.array([memory.ctypes.data], dtype=np.uint64), dtype), dtype)
    return base + tl.arange(0, SIZE) if shape else base + 1


def _operand(what: Any, name: str, turn: int) -> Any:
    return _tensor(name, SHAPES[what], turn) if isinstance(what, str) else what


def _load(name: str, shape: tuple[int, ...], how: tuple[Any, Any], turn: int) -> Any:
    memory = np.resize(np.roll(_values(name), turn), SIZE)
    pointers = _pointers(name, shape, memory)
    mask, other = _operand(how[0], "int1", turn), _operand(how[1], name, turn + 1)
    return tl.load(pointers, mask=mask, other=other)


def _store(name: str, source: str, mask: Any, turn: int) -> Any:
    memory = np.resize(np.roll(_values(name), turn), SIZE)
    pointers = _pointers(name, (SIZE,), memory)
    tl.store(pointers, _tensor(source, (SIZE,), turn + 1), mask=_operand(mask, "int1", turn))
    return memory


GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    "pairs": _pairs,
    "numbers": _with_numbers,
    "broadcasts": _broadcasts,
    "casts": _casts,
    "unary": _unary,
    "made": _made,
    "memory": _memory,
}


def _prepare(*, supplied: bool) -> None:
    """Without shortcuts, only the overflow checks of integers are off, as they are with them."""
    if supplied:
        ours.supply()
    else:
        needless.skip_overflow_checks()
    for function in (_language, _core):
        interpreter._patch_lang(function.fn)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")


def results(*, group: str, supplied: bool) -> dict[str, Any]:
    """What each operation of a group gives: types, shapes and a digest of the bytes, or the error.

    And how many kinds of calls have plans, and how many go Triton's own way.
    """
    _prepare(supplied=supplied)
    told = {
        f"{name}, round {turn}": _told(act, turn)
        for name, act in GROUPS[group]()
        for turn in range(ROUNDS)
    }
    plans = _plans() if supplied else []
    own = plans.count(None)
    return {"results": told, "planned": len(plans) - own, "own way": own}


def _plans() -> list[Any]:
    return [plan for plans in shortcuts.install()._all_plans for plan in plans.values()]


def apart(*, supplied: bool) -> dict[str, list[str]]:
    """Calls that look alike, one after another."""
    _prepare(supplied=supplied)
    one, two = _tensor("float32", (8,), 0), _tensor("float32", (8,), 1)
    marked = tl.multiple_of(_tensor("int32", (8,), 0) + 1, 8)
    fresh = _tensor("int32", (8,), 0) + 1
    return {
        "signed zeros": [_described(one * number) for number in (0.0, -0.0, 0, 0.0)],
        "aliases": [_described(left - right) for left, right in ((one, one), (one, two))],
        "kinds of numbers": [_described(fresh + number) for number in (1, 1.0, True, 1)],
        "own attributes": [repr(marked.handle.attr), repr(fresh.handle.attr)],
    }


def decided_by_values(*, supplied: bool) -> list[int]:
    """What scalar loads give under masks that are true and false."""
    _prepare(supplied=supplied)
    memory = np.array([0, 5], dtype=np.int32)
    masks = (True, False, True, False)
    defaults = (-1, -1, 0, 0)
    loaded = [
        tl.load(
            _pointers("int32", (), memory),
            mask=tl.tensor(TensorHandle(np.array([mask]), tl.int1), tl.int1),
            other=default,
        )
        for mask, default in zip(masks, defaults, strict=True)
    ]
    return [int(value.handle.data[0]) for value in loaded]


def forgotten(*, constant_bytes_most: int) -> dict[str, Any]:
    """How much the constants of plans take at most, and whether results are as they were."""
    _prepare(supplied=True)
    shortcuts.CONSTANT_BYTES_MOST = constant_bytes_most
    installed, taken, results = shortcuts.install(), [], []
    for _ in range(2):
        for number in range(200):
            results.append((_tensor("int64", (8,), 0) + number).handle.data.tobytes())
            taken.append(installed._constant_bytes)
    return {"most": max(taken), "each": 2 * 8 * SIZE, "same": results[:200] == results[200:]}


def moved() -> dict[str, Any]:
    """What is noted, and whether plans are made, where a method of the builder is not there."""
    del InterpreterBuilder.cast_impl
    notes = needless.leave_out()
    called = shortcuts.install.cache_info().currsize
    return {"notes": notes, "installed": bool(called)}


def otherwise() -> list[list[int]]:
    """Sums where the builder's binary operations double their result."""
    plain = InterpreterBuilder.binary_op

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        result = plain(self, lhs, rhs, op)
        return TensorHandle(result.data * 2, result.dtype)

    InterpreterBuilder.binary_op = binary_op
    _prepare(supplied=True)
    data = np.array([1, 2, 3], dtype=np.int32)
    one, none = (
        tl.tensor(TensorHandle(array, tl.int32), tl.int32) for array in (data, np.zeros_like(data))
    )
    return [(one + none).handle.data.tolist() for _ in range(2)]


def _told(act: Callable[[int], Any], turn: int) -> str:
    try:
        return _described(act(turn))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _described(result: Any) -> str:
    if isinstance(result, tuple):
        return "; ".join(map(_described, result))
    if isinstance(result, np.ndarray):
        return hashlib.sha256(result.tobytes()).hexdigest()[:16]
    if not isinstance(result, tl.tensor):
        return repr(result)
    data = np.asarray(result.handle.data)
    shape = tuple(size.value for size in result.shape)
    digest = hashlib.sha256(data.tobytes()).hexdigest()[:16]
    return f"{result.type} {result.handle.dtype} {shape} {data.dtype}{data.shape} {digest}"
