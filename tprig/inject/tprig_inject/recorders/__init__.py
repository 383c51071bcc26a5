"""The registry of recorders: what can be recorded in a worker, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tprig_inject.context import Context
from tprig_inject.recorders import collectives, decisions, stages, verification


@dataclass(frozen=True)
class Recorder:
    """Something that writes to a rank's stream while a run lasts."""

    install: Callable[[Context], None]
    seams: tuple[str, ...]
    """What it rests on."""


RECORDERS: Mapping[str, Recorder] = {
    "verification": Recorder(verification.install, verification.SEAMS),
    # In this order: decisions say how many collectives came before them.
    "collectives": Recorder(collectives.install, collectives.SEAMS),
    "decisions": Recorder(decisions.install, decisions.SEAMS),
    **{
        f"stage:{stage}": Recorder(install, stages.SEAMS[stage])
        for stage, install in stages.INSTALLERS.items()
    },
}
