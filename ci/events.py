"""The stream of one attempt at one step: JSON lines, each flushed as it happens."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

EVENTS_FILE = "events.jsonl"
DETAIL_CHARS = 4000

Outcome = Literal["passed", "failed", "error", "skipped", "interrupted", "crashed"]


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all have.

    Attributes:
        at_s: seconds since the epoch, of the machine that wrote it.
    """

    at_s: float = msgspec.field(default_factory=time.time)


class Begun(Event, frozen=True, kw_only=True, tag="begun"):
    """The attempt begins; written by the step's runner."""

    step: str
    attempt: int
    job: str


class CollectedTests(Event, frozen=True, kw_only=True, tag="collected"):
    """What pytest (or one xdist worker) has collected and not deselected."""

    tests: list[str]


class CollectionFailed(Event, frozen=True, kw_only=True, tag="collection-failed"):
    """A module or folder that could not be collected."""

    where: str
    detail: str


class Started(Event, frozen=True, kw_only=True, tag="started"):
    """A test begins."""

    test: str


class Finished(Event, frozen=True, kw_only=True, tag="finished"):
    """A test has ended; `detail` is its first failure, or why it was skipped."""

    test: str
    outcome: Outcome
    seconds: float
    detail: str = ""


class WorkerLost(Event, frozen=True, kw_only=True, tag="worker-lost"):
    """A worker of xdist is gone."""

    worker: str
    detail: str


class Ended(Event, frozen=True, kw_only=True, tag="ended"):
    """pytest has ended; written by the step's runner, which outlives it.

    Attributes:
        status: pytest's exit status; negative, the signal that ended it.
        timed_out: the inner watchdog ended it.
        cancelled: the service did.
    """

    status: int
    timed_out: bool = False
    cancelled: bool = False


AnyEvent = Begun | CollectedTests | CollectionFailed | Started | Finished | WorkerLost | Ended

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(AnyEvent)


def append(path: Path, event: AnyEvent) -> None:
    """Append one event in a single write, so that writers may share the file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, _ENCODER.encode(event) + b"\n")
    finally:
        os.close(descriptor)


def read(path: Path) -> list[AnyEvent]:
    """Read what is there; a last line that was torn is left out.

    Raises:
        ValueError: a whole line is no event.
    """
    lines = path.read_bytes().split(b"\n")
    # What follows the last newline was torn by the writer's death, or is empty.
    return list(_decoded(path, lines[:-1]))


def _decoded(path: Path, lines: list[bytes]) -> Iterator[AnyEvent]:
    for number, line in enumerate(lines, 1):
        try:
            yield _DECODER.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}:{number}: expected an event, found: {error}") from None
