"""Loads captured calls and their replays, and hands them to the runs that they belong to."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tprig import evidence
from tprig.bundle.records import MalformedError
from tprig.bundle.tensors import check_header, read_tensors
from tprig.history import Arrays, CallHistory, ReplayHistory, RunHistory, Stream

CALLS = "oracles"
REPLAYS = "replays"
TENSORS = "tensors.safetensors"
_ID = re.compile("[0-9a-f]{32}")
_T = TypeVar("_T", bound=evidence.Record)


class Source(Protocol):
    """What this reads through: it notes what is damaged or missing."""

    def document(self, path: str, kind: type[_T], *, needed: bool = True) -> _T | None:
        """Read a document."""

    def stream(self, path: str, kind: str, subject: str | None) -> Stream[Any] | None:
        """Read a stream."""

    def open(self, path: str, *, needed: bool = True) -> BufferedReader | None:
        """Open a file."""

    def folders(self, parent: str) -> list[str]:
        """Names of the folders in a folder of the bundle."""

    def damage(self, path: str, message: str) -> None:
        """Note that a file cannot be used."""


class OracleReader:
    """Reads `oracles/` and `replays/`."""

    def __init__(self, source: Source, root: Path) -> None:
        self._source = source
        self._root = root

    def calls(self) -> dict[str, CallHistory]:
        """Captured calls by id."""
        return {call.id: call for call in self._calls()}

    def replays(self) -> tuple[ReplayHistory, ...]:
        """What came of running captured calls again."""
        return tuple(self._replays())

    def _calls(self) -> Iterator[CallHistory]:
        for name in self._source.folders(CALLS):
            folder = f"{CALLS}/{name}"
            if name.startswith("."):
                # A worker that died while it wrote a call: no stream names it.
                continue
            if not _ID.fullmatch(name):
                self._source.damage(folder, "is no captured call: its name is no digest")
                continue
            call = self._source.document(f"{folder}/call.json", evidence.CapturedCall)
            if call is not None and self._holds(f"{folder}/{TENSORS}", call):
                yield CallHistory(name, call, self._reader(f"{folder}/{TENSORS}"))

    def _holds(self, path: str, call: evidence.CapturedCall) -> bool:
        try:
            handle = self._source.open(path)
            if handle is not None:
                with handle:
                    check_header(handle, call.tensors)
                return True
        except MalformedError as error:
            self._source.damage(path, str(error))
        except OSError as error:
            self._source.damage(path, f"cannot be read ({error.strerror})")
        return False

    def _reader(self, path: str) -> Any:  # noqa: ANN401 - a cached function
        return cache(partial(read_tensors, self._root, path))

    def _replays(self) -> Iterator[ReplayHistory]:
        for name in self._source.folders(REPLAYS):
            folder = f"{REPLAYS}/{name}"
            replay = self._source.document(f"{folder}/replay.json", evidence.Replay)
            if replay is None:
                continue
            if replay.id != name:
                self._source.damage(f"{folder}/replay.json", f"names the replay '{replay.id}'")
                continue
            results = self._source.stream(f"{folder}/results.jsonl", "replay", name)
            yield ReplayHistory(name, replay, results, cache(partial(self._outputs, folder)))

    def _outputs(self, folder: str, name: str) -> Arrays:
        return read_tensors(self._root, f"{folder}/outputs/{name}.safetensors")


def attach(
    run: RunHistory, calls: Mapping[str, CallHistory], replays: Iterable[ReplayHistory]
) -> RunHistory:
    """The run with those of the captured calls that its ranks name, and the replays of them."""
    records = [record for stream in run.ranks.values() for record in stream.records]
    named = [r.call for r in records if isinstance(r, evidence.OracleCall) and r.call is not None]
    if not named:
        return run
    return dataclasses.replace(
        run,
        calls={name: calls[name] for name in dict.fromkeys(named) if name in calls},
        replays=tuple(r for r in replays if {p.call for p in r.replay.planned} & set(named)),
    )
