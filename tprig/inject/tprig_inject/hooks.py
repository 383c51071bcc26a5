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
    """As it stands in the owner's `__dict__`: a function, classmethod or staticmethod."""
    hooks: list[Hook] = field(default_factory=list)


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
        place.hooks.append(hook)
        self._rebuild(place)
        return hook

    def remove(self, hook: Hook) -> None:
        """Take a wrapper away; the last one restores the original."""
        place = self._places[hook.seam]
        place.hooks.remove(hook)
        self._rebuild(place)
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
        place = self._places[name] = _Place(found.owner, attribute, original)
        return place

    def _rebuild(self, place: _Place) -> None:
        wrapped = place.original
        for hook in sorted(place.hooks, key=lambda hook: hook.layer):
            wrapped = _rewrap(wrapped, hook.wrap)
        setattr(place.owner, place.name, wrapped)


def _rewrap(raw: Any, wrap: Wrap) -> Any:
    """Wrap the function inside a classmethod or staticmethod, which stays one."""
    if isinstance(raw, (classmethod, staticmethod)):
        return type(raw)(wrap(raw.__func__))
    return wrap(raw)
