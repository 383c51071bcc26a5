"""What a worker does for the host, reached through vLLM's own `worker_extension_cls`."""

from __future__ import annotations

import hashlib
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tprig_inject import config, seams
from tprig_inject.hooks import Hooks
from tprig_inject.session import Session
from tprig_inject.stream import RankStream


@cache
def hooks() -> Hooks:
    """The hooks of this process."""
    settings = config.current()
    return Hooks(seams.with_overrides({} if settings is None else settings.seams))


@cache
def _session() -> Session:
    return Session(hooks())


class WorkerExtension:
    """Mixed into vLLM's worker class; every method returns JSON-like values."""

    rank: int
    model_runner: Any
    _tprig_stream: RankStream

    def tprig_begin(self, run: str, folder: str, recorders: list[str], faults: list[str]) -> None:
        """Begin recording a run into `folder/rank<r>.jsonl`, with faults armed."""
        self._tprig_stream = RankStream(Path(folder) / f"rank{self.rank}.jsonl", run)
        _session().begin(
            write=self._tprig_stream.write,
            recorders=recorders,
            faults=faults,
            model_runner=self.model_runner,
            rank=self.rank,
            # `folder` is the bundle's `runs/<id>/ranks`.
            oracles=Path(folder).parents[2] / "oracles",
        )

    def tprig_end(self) -> None:
        """End the run: recorders and faults are taken out, originals are back, the file ends."""
        _session().end()
        self._tprig_stream.close()

    def tprig_describe(self) -> dict[str, Any]:
        """Who this worker is: `rank`, `pid`, `imported` (vLLM's files), `vocab_size`, `wrapped`."""
        return {
            "rank": self.rank,
            "pid": os.getpid(),
            "imported": imported_files(),
            "vocab_size": int(self.model_runner.vocab_size),
            "wrapped": wrapped(),
        }


@cache
def _first_seen() -> dict[str, Any]:
    """What stood at the seams when this process first looked, which is before its first run."""
    return seams.standing(hooks().table)


def wrapped() -> list[str]:
    """The seams at which something else stands than at first, or something of ours, by name."""
    first = _first_seen()
    return [
        name
        for name, raw in seams.standing(hooks().table).items()
        if raw is not first.get(name) or _is_ours(raw)
    ]


def _is_ours(raw: Any) -> bool:
    code = getattr(getattr(raw, "__func__", raw), "__code__", None)
    return code is not None and Path(code.co_filename).is_relative_to(Path(__file__).parent)


def imported_files() -> dict[str, str]:
    """SHA-256 of every Python file of vLLM that this process has imported, by module name."""
    files = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name.partition(".")[0] == "vllm" and path and path.endswith(".py"):
            files[name] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return files
