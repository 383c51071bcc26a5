"""What a recorder or a fault stands on while a run lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tprig_inject import seams
from tprig_inject.hooks import Hooks, Layer, Wrap
from tprig_inject.log import Log


@dataclass
class Context:
    """What a recorder or a fault may use while a run lasts."""

    hooks: Hooks
    write: Callable[[dict[str, Any]], None]
    """Appends a record to where this process's records go."""
    model_runner: Any
    rank: int = 0
    """The worker's; 0 where the scheduler runs."""
    oracles: Path | None = None
    """The bundle's folder of captured calls; None where none may be kept."""
    step: int = -1
    """Model steps that this process has begun in this run, less one."""
    log: Log | None = None
    """The collectives of this process, where they are recorded."""
    _removers: list[Callable[[], Any]] = field(default_factory=list)

    def wrap(self, seam: str, layer: Layer, wrap: Wrap) -> None:
        """Put a wrapper at a seam for the length of the run.

        Raises:
            seams.SeamMovedError: if the seam does not look as expected.
        """
        self.on_end(partial(self.hooks.remove, self.hooks.add(seam, layer, wrap)))

    def on_end(self, remover: Callable[[], Any]) -> None:
        """Call `remover()` when the run ends."""
        self._removers.append(remover)

    def install(self, install: Callable[[Context], None], name: str) -> bool:
        """Put a recorder or a fault in place, whole or not at all.

        Returns:
            False when one of its seams has moved, which is written down.
        """
        before = len(self._removers)
        try:
            install(self)
        except seams.SeamMovedError as error:
            self._take_out(before)
            self.write(_moved(name, error))
            return False
        return True

    def close(self) -> None:
        """Take everything out again, last in first out."""
        self._take_out(0)

    def _take_out(self, kept: int) -> None:
        while len(self._removers) > kept:
            self._removers.pop()()


def _moved(name: str, error: seams.SeamMovedError) -> dict[str, Any]:
    return {
        "type": "seam",
        "name": name,
        "target": "",
        "expected": "the seams of this recorder or fault",
        "found": str(error),
        "ok": False,
    }
