"""The registry of recorders: what can be recorded in a worker, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tprig_inject.context import Context
from tprig_inject.recorders import (
    chunk_rows,
    collectives,
    decisions,
    device_times,
    host_copies,
    oracle,
    stages,
    verification,
)


@dataclass(frozen=True)
class Recorder:
    """Something that writes to a rank's stream while a run lasts."""

    install: Callable[..., None]
    """Takes the context, and where it has options those as text."""
    seams: tuple[str, ...]
    """What it rests on."""


RECORDERS: Mapping[str, Recorder] = {
    "oracle": Recorder(oracle.install, oracle.SEAMS),
    "chunk-rows": Recorder(chunk_rows.install, chunk_rows.SEAMS),
    "host-copies": Recorder(host_copies.install, host_copies.SEAMS),
    "device-times": Recorder(device_times.install, device_times.SEAMS),
    "verification": Recorder(verification.install, verification.SEAMS),
    # In this order: decisions say how many collectives came before them.
    "collectives": Recorder(collectives.install, collectives.SEAMS),
    "decisions": Recorder(decisions.install, decisions.SEAMS),
    **{
        f"stage:{stage}": Recorder(install, stages.SEAMS[stage])
        for stage, install in stages.INSTALLERS.items()
    },
}


def find(name: str) -> tuple[str, Callable[[Context], None]]:
    """A recorder by its name, with options behind a question mark: `oracle?most=8`.

    Returns:
        The name without options, and what installs it with them.

    Raises:
        KeyError: if there is none of that name.
    """
    base, _, options = name.partition("?")
    install = RECORDERS[base].install
    return base, partial(install, options=options) if options else install
