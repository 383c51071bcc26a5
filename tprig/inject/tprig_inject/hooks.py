"""Wraps vLLM's callables at seams, and puts the originals back.

Recorders and faults both wrap. A fault stands next to the original and a recorder outside of it,
whichever came first, so a recorder sees what it would see in the wild. When the last wrapper of
a seam is removed, the original function itself is in place again.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tprig_inject import seams

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Takes the callable that stands there and returns the one that shall."""


class Layer(enum.IntEnum):
    """Distance from the original."""

    FAULT = 0
    RECORDER = 1


@dataclass(frozen=True, eq=False)
class Hook:
    """One wrapper at one seam; the token to remove it by."""

    seam: str
    layer: Layer
    wrap: Wrap


@dataclass
class _Place:
    owner: Any
    name: str
    original: Any
    """As it stands in a `__dict__`: a function, classmethod or staticmethod."""
    inherited: bool
    """True when it stands in that of a base class of the owner."""
    hooks: list[Hook] = field(default_factory=list)

    def put(self, hooks: list[Hook]) -> None:
        """Have these wrappers in place; if one of them raises, everything stays as it was."""
        wrapped = self.original
        for hook in sorted(hooks, key=lambda hook: hook.layer):
            wrapped = _rewrap(wrapped, hook.wrap)
        if self.inherited and not hooks:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, wrapped)
        self.hooks = hooks


class Hooks:
    """The wrappers of one process."""

    def __init__(self, table: Mapping[str, seams.Seam] = seams.SEAMS) -> None:
        self.table = table
        self._places: dict[str, _Place] = {}

    def add(self, seam: str, layer: Layer, wrap: Wrap) -> Hook:
        """Wrap the callable at a seam.

        Raises:
            seams.SeamMovedError: if the seam does not look as expected.
        """
        place = self._places.get(seam) or self._open(seam)
        hook = Hook(seam, layer, wrap)
        place.put([*place.hooks, hook])
        self._places[seam] = place
        return hook

    def remove(self, hook: Hook) -> None:
        """Take a wrapper away; the last one restores the original.

        Raises:
            ValueError: if it is not in place.
        """
        place = self._places.get(hook.seam)
        if place is None or hook not in place.hooks:
            raise ValueError(f"the hook at seam {hook.seam!r} is not in place")
        place.put([other for other in place.hooks if other is not hook])
        if not place.hooks:
            del self._places[hook.seam]

    def _open(self, name: str) -> _Place:
        seam = self.table[name]
        found = seams.locate(seam)
        if not found.ok:
            raise seams.SeamMovedError(
                f"seam {name} ({seam.target}): expected parameters {seam.parameters}, found "
                f"{found.found}; declare its new shape with --tprig-seams"
            )
        attribute = seam.attribute.rpartition(".")[2]
        original = inspect.getattr_static(found.owner, attribute)
        return _Place(found.owner, attribute, original, attribute not in vars(found.owner))


def _rewrap(raw: Any, wrap: Wrap) -> Any:
    """Wrap the function inside a classmethod or staticmethod, which stays one."""
    if isinstance(raw, (classmethod, staticmethod)):
        return type(raw)(wrap(raw.__func__))
    return wrap(raw)
