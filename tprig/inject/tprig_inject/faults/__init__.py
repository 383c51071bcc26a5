"""The registry of planted faults: known bugs that can be put into a running engine, by name.

A fault alters vLLM's tensors, calls, processes or timing, never our records. It strikes at the
first occasion at which it changes what an honest engine would have returned, once per run, and
says so in the rank's stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tprig_inject.context import Context
from tprig_inject.faults import masks, ranks, slowness


@dataclass(frozen=True)
class Fault:
    """One planted bug."""

    install: Callable[[Context], None]
    process: Literal["worker", "core"]
    """Where it is planted: in every worker, or where the scheduler runs."""
    resembles: str
    """The class of real bug that it stands for."""
    anomaly: str
    """The anomaly that must name it."""
    lethal: bool = False
    """True when the engine is lost to it: such a fault is tried on an engine of its own."""
    timed: bool = False
    """True when it alters nothing but how long things take, which only a measurement shows."""


FAULTS: Mapping[str, Fault] = {
    "mask-row-shifted": Fault(
        masks.row_shifted,
        "worker",
        "a mask gathered with the row offset of another position of the same request",
        "mask.row-alignment",
    ),
    "mask-token-cut": Fault(
        masks.token_cut,
        "worker",
        "a support taken before the last logits processor re-admitted a token",
        "mask.membership",
    ),
    "mask-lost": Fault(
        masks.lost,
        "core",
        "a mask chunk dropped between scheduler and output processor",
        "mask.absent",
    ),
    "gather-skipped": Fault(
        ranks.gather_skipped,
        "worker",
        "a branch around a collective that one rank takes and its peers do not",
        "collective.missing",
        lethal=True,
    ),
    "slow-4": Fault(
        slowness.slower("slow-4", 0.04),
        "worker",
        "a synchronisation or a copy more in every step: 4% of its time",
        "cost.regression",
        timed=True,
    ),
    "slow-10": Fault(
        slowness.slower("slow-10", 0.10),
        "worker",
        "a synchronisation or a copy more in every step: 10% of its time",
        "cost.regression",
        timed=True,
    ),
    "stall": Fault(
        slowness.stall,
        "worker",
        "a pause that comes now and then: a collection, a page fault, a clock that is held down",
        "cost.regression",
        timed=True,
    ),
}
