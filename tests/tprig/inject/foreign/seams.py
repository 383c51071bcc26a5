"""Looks seams up in the installed vLLM, and wraps them there."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from tprig_inject.hooks import Hooks, Layer
from tprig_inject.seams import SEAMS, locate, report, with_overrides


def reported(overrides: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The records of all seams, with new shapes for some."""
    return report(with_overrides(overrides or {}))


def wrapped_and_restored() -> dict[str, dict[str, bool]]:
    """Per seam: a wrapper was in place, and the original itself was there afterwards."""
    hooks = Hooks()
    told = {}
    for name, seam in SEAMS.items():
        owner, attribute = locate(seam).owner, seam.attribute.rpartition(".")[2]
        original = inspect.getattr_static(owner, attribute)
        hook = hooks.add(name, Layer.FAULT, partial)
        wrapped = inspect.getattr_static(owner, attribute)
        hooks.remove(hook)
        told[name] = {
            "wrapped": wrapped is not original,
            "restored": inspect.getattr_static(owner, attribute) is original,
        }
    return told
