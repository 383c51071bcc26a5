"""Puts plans before Triton's builtins: the first call of its kind is traced, and others follow it.

What cannot be planned (another kind of argument, a decision that rests on values) goes the way
that Triton wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        semantic, tracing, kinds, tensor = self._semantic, self.tracing, self._kinds, self._tensor

        def general(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
            options.pop("_semantic", None)
            if tracing.trace is not None:
                return member(*args, **options, _semantic=tracing.semantic)
            key: list[Any] = []
            tensors: list[Any] = []
            for value in (*args, *options.values()):
                if type(value) is tensor:
                    tensors.append(value)
                    key.append(kinds.of(value))
                else:
                    key.append(kinds.argument(value))
            if None in key:
                return member(*args, **options, _semantic=semantic)
            whole = tuple(key) if not options else (*key, *options)
            plan = plans.get(whole, _MISSING)
            if plan is _MISSING:
                return self._trace(member, args, options, (plans, whole))
            if plan is None:
                return member(*args, **options, _semantic=semantic)
            return plan(*tensors)

        def call(*args: Any, **options: Any) -> Any:
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
            return general(args, options)

        return call

    def _trace(
        self,
        member: Callable[..., Any],
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        at: tuple[Plans, Any],
    ) -> Any:
        """Call a builtin, and keep the plan of what it did; an error is left without one."""
        trace, operands, given = Trace(), [], []
        actual: list[Any] = []
        for value in (*args, *options.values()):
            if type(value) is self._tensor:
                # One tensor in two places is two operands, as it will be two tensors next time.
                handle = self._handle(value.handle.data, value.handle.dtype, value.handle.attr)
                trace.place(handle)
                operands.append(self._tensor(handle, value.type))
                actual.append(value)
                given.append(operands[-1])
            else:
                given.append(value)
        named = dict(zip(options, given[len(args) :], strict=True))
        self.tracing.trace = trace
        try:
            result = member(*given[: len(args)], **named, _semantic=self.tracing.semantic)
        finally:
            self.tracing.trace = None
        self._keep(at, self._planner.plan(trace, operands, result), bytes_of(trace))
        for operand, value in zip(operands, actual, strict=True):
            if result is operand:
                return value
        return result

    def _keep(self, at: tuple[Plans, Any], plan: Plan | None, constant_bytes: int) -> None:
        self._constant_bytes += constant_bytes
        self._count += 1
        if self._constant_bytes > CONSTANT_BYTES_MOST or self._count > PLANS_MOST:
            for plans in self._all_plans:
                plans.clear()
            self._constant_bytes, self._count = constant_bytes, 1
        plans, key = at
        plans[key] = plan


def install() -> Shortcuts:
    """Let Triton's interpreter put a plan before each builtin that it replaces."""
    from triton.runtime import interpreter

    shortcuts = Shortcuts()
    patch_tensor = interpreter._patch_lang_tensor

    def patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:  # noqa: ARG001
        scope.set_attr(obj, name, shortcuts.before(member))

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        for name in ("__bool__", "__index__", "__repr__", "__str__"):
            scope.set_attr(tensor, name, _watched(getattr(tensor, name), shortcuts.tracing))

    interpreter._patch_attr = patch_attr
    interpreter._patch_lang_tensor = patch_lang_tensor
    return shortcuts


def _watched(look: Callable[[Any], Any], tracing: Tracing) -> Callable[[Any], Any]:
    def watched(self: Any) -> Any:
        tracing.spoil()
        return look(self)

    return watched
