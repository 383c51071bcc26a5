"""Puts plans before Triton's builtins: the first call of its kind is traced, and others follow it.

What cannot be planned (another kind of argument, a decision that rests on values) goes the way
that Triton wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tprig_inject.interpreter.kinds import KIND, Kinds
from tprig_inject.interpreter.plans import Plan, Planner, bytes_of
from tprig_inject.interpreter.tracing import Trace, Tracing

CONSTANT_BYTES_MOST = 64 << 20
"""How much the constants of all plans may take before all plans are forgotten."""

PLANS_MOST = 20_000
"""How many plans there may be before all are forgotten."""

Plans = dict[Any, Plan | None]
_MISSING: Any = object()


class Shortcuts:
    """All builtins that plans stand before."""

    def __init__(self) -> None:
        from triton import language as tl
        from triton.runtime import interpreter

        self._semantic = interpreter.interpreter_semantic
        self._tensor, self._handle = tl.core.tensor, interpreter.TensorHandle
        self._kinds = Kinds()
        self._planner = Planner(self._kinds)
        self.tracing = Tracing()
        self._all_plans: list[Plans] = []
        self._constant_bytes = 0
        self._count = 0

    def before(self, member: Callable[..., Any]) -> Callable[..., Any]:
        """A builtin that may be called as Triton's interpreter calls it."""
        plans: Plans = {}
        self._all_plans.append(plans)
        tracing, tensor = self.tracing, self._tensor

        def call(*args: Any, **options: Any) -> Any:
            # Most calls: an operator between tensors whose kinds are known, or with an integer.
            if not options and len(args) == 2 and tracing.trace is None:
                left, right = args
                if type(left) is tensor:
                    kind = left.__dict__.get(KIND)
                    if type(right) is tensor:
                        plan = plans.get((kind, right.__dict__.get(KIND)))
                        if plan is not None:
                            return plan(left, right)
                    elif type(right) is int:
                        plan = plans.get((kind, right))
                        if plan is not None:
                            return plan(left)
            return self._call(member, plans, args, options)

        return call

    def _call(
        self,
        member: Callable[..., Any],
        plans: Plans,
        args: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        options.pop("_semantic", None)
        if self.tracing.trace is not None:
            return member(*args, **options, _semantic=self.tracing.semantic)
        key: list[Any] = []
        tensors: list[Any] = []
        for value in (*args, *options.values()):
            if type(value) is self._tensor:
                tensors.append(value)
                key.append(self._kinds.of(value))
            else:
                key.append(self._kinds.argument(value))
        # Names of options cannot be taken for arguments, which are not bare strings here.
        whole = (*key, *options)
        plan = None if None in key else plans.get(whole, _MISSING)
        if plan is _MISSING:
            return self._trace(member, args, options, (plans, whole))
        if plan is None:
            return member(*args, **options, _semantic=self._semantic)
        return plan(*tensors)

    def _trace(
        self,
        member: Callable[..., Any],
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        at: tuple[Plans, Any],
    ) -> Any:
        """Call a builtin, and keep the plan of what it did; an error is left without one."""
        trace = Trace()
        actual = [v for v in (*args, *options.values()) if type(v) is self._tensor]
        operands = [self._stand_in(value, trace) for value in actual]
        rest = iter(operands)
        given = [next(rest) if type(v) is self._tensor else v for v in (*args, *options.values())]
        named = dict(zip(options, given[len(args) :], strict=True))
        self.tracing.trace = trace
        try:
            result = member(*given[: len(args)], **named, _semantic=self.tracing.semantic)
        finally:
            self.tracing.trace = None
        self._keep(at, self._planner.plan(trace, operands, result), bytes_of(trace))
        returned = [v for operand, v in zip(operands, actual, strict=True) if result is operand]
        return returned[0] if returned else result

    def _stand_in(self, tensor: Any, trace: Trace) -> Any:
        """One tensor in two places is two operands, as it will be two tensors next time."""
        handle = self._handle(tensor.handle.data, tensor.handle.dtype, tensor.handle.attr)
        trace.place(handle)
        return self._tensor(handle, tensor.type)

    def _keep(self, at: tuple[Plans, Any], plan: Plan | None, constant_bytes: int) -> None:
        self._constant_bytes += constant_bytes
        self._count += 1
        if self._constant_bytes > CONSTANT_BYTES_MOST or self._count > PLANS_MOST:
            for plans in self._all_plans:
                plans.clear()
            self._constant_bytes, self._count = constant_bytes, 1
        plans, key = at
        plans[key] = plan


@cache
def install() -> Shortcuts:
    """Let Triton's interpreter put a plan before each builtin that it replaces; once a process."""
    from triton.runtime import interpreter

    shortcuts = Shortcuts()
    patch_tensor = interpreter._patch_lang_tensor

    def patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:  # noqa: ARG001
        scope.set_attr(obj, name, shortcuts.before(member))

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        _watch(tensor, shortcuts.tracing, scope)

    interpreter._patch_attr = patch_attr
    interpreter._patch_lang_tensor = patch_lang_tensor
    _shorten_constants(shortcuts)
    return shortcuts


def _watch(tensor: Any, tracing: Tracing, scope: Any) -> None:
    """Notice where Triton's Python code looks at the value of a tensor that is traced."""
    ask = tensor.__bool__

    def is_true(self: Any) -> bool:
        # All blocks are true.
        if self.handle.data.size == 1:
            tracing.spoil()
        return bool(ask(self))

    scope.set_attr(tensor, "__bool__", is_true)
    for name in ("__index__", "__repr__", "__str__"):
        scope.set_attr(tensor, name, _watched(getattr(tensor, name), tracing))


def _watched(look: Callable[[Any], Any], tracing: Tracing) -> Callable[[Any], Any]:
    def watched(self: Any) -> Any:
        tracing.spoil()
        return look(self)

    return watched


def _shorten_constants(shortcuts: Shortcuts) -> None:
    """Each assignment in a kernel makes a tensor of what it assigns, if it is not one yet."""
    from triton import language as tl
    from triton.runtime.interpreter import interpreter_semantic as semantic

    make = type(semantic).to_tensor
    tensor, numbers = tl.core.tensor, frozenset({int, float, bool})

    def of_number(x: Any, *, _semantic: Any) -> Any:
        return make(_semantic, x)

    shortened = shortcuts.before(of_number)

    def to_tensor(x: Any, check_type: bool = True) -> Any:  # noqa: FBT001, FBT002 - as it is called
        kind = type(x)
        if kind is tensor:
            return x
        return shortened(x) if kind in numbers else make(semantic, x, check_type)

    semantic.to_tensor = to_tensor
