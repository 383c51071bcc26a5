"""What the host tells the processes of its engine, through one environment variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tprig_inject.process import Place

VARIABLE = "TPRIG_INJECT"


@dataclass(frozen=True, kw_only=True)
class Config:
    """One engine's settings, the same in each of its processes."""

    runtime: str
    shm_prefix: str
    platform: str
    host_pid: int
    forked: bool
    """True when the host's children are forked, and so have this process's state already."""
    ranks_per_device: int
    """More than 1: that many ranks share each device, which NCCL 2.30 and newer allow."""
    seams: dict[str, Any]

    @property
    def place(self) -> Place:
        """Where the engine keeps what it leaves on the machine."""
        return Place(Path(self.runtime), self.shm_prefix)

    def publish(self) -> None:
        """Hand it to this process's children."""
        os.environ[VARIABLE] = json.dumps(asdict(self))


def current() -> Config | None:
    """The settings of the engine that this process belongs to; None outside of one."""
    text = os.environ.get(VARIABLE)
    return None if text is None else Config(**json.loads(text))
