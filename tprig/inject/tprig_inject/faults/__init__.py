"""The registry of planted faults: known bugs that can be put into a running engine, by name.

A fault alters vLLM's tensors, calls, processes or timing, never our records. It strikes at the
first occasion at which it changes what an honest engine would have returned, once per run unless
it says otherwise, and says so in the stream of its process.
"""

from __future__ import annotations

from collections.abc import Mapping

from tprig_inject.context import Context
from tprig_inject.faults import copies, engine, masks, ranks, sampler, slowness, stages
from tprig_inject.faults.base import Fault, Once

__all__ = ["FAMILIES", "FAULTS", "Fault", "plant"]

FAMILIES: Mapping[str, Mapping[str, Fault]] = {
    "masks": masks.FAULTS,
    "sampler": sampler.FAULTS,
    "copies": copies.FAULTS,
    "ranks": ranks.FAULTS,
    "engine": engine.FAULTS,
    "slowness": slowness.FAULTS,
    "stages": stages.FAULTS,
}
"""What a fault is a fault of -> its faults by name."""

FAULTS: Mapping[str, Fault] = {
    name: fault for family in FAMILIES.values() for name, fault in family.items()
}


def plant(name: str, context: Context) -> None:
    """Put a fault in place for the length of a run.

    Raises:
        KeyError: for a name that is not in the registry.
        SeamMovedError: if a seam does not look as expected.
    """
    FAULTS[name].plant(Once(context, name))
