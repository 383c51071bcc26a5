"""What a checker is given: the records of runs and engines, loaded and typed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from tprig import evidence

R_co = TypeVar("R_co", covariant=True)

FIRST_RECORD_LINE = 2
"""Line of a stream's first record; line 1 is its header."""


@dataclass(frozen=True)
class Stream(Generic[R_co]):
    """The records of one stream, in order.

    `records[i]` stands on line `i + FIRST_RECORD_LINE` of `path`.
    """

    path: str
    records: tuple[R_co, ...]
    complete: bool
    """False when the stream has no end record: it was cut short."""
    dropped: int = 0


@dataclass(frozen=True)
class EngineHistory:
    """One engine: what was asked for, what it said it does, and what happened to it."""

    id: str
    arm: evidence.Arm | None = None
    effective: evidence.Effective | None = None
    events: Stream[evidence.EngineRecord] | None = None


Arrays = Mapping[str, NDArray[Any]]
"""Tensors by name; bfloat16, which NumPy lacks, as the uint16 of the same bits."""


@dataclass(frozen=True)
class CallHistory:
    """One captured call of the rejection sampler."""

    id: str
    call: evidence.CapturedCall
    tensors: Callable[[], Arrays]
    """Reads what the bundle holds: large, so only when asked for."""


@dataclass(frozen=True)
class ReplayHistory:
    """Captured calls that were run again."""

    id: str
    replay: evidence.Replay
    results: Stream[evidence.ReplayRecord] | None
    outputs: Callable[[str], Arrays]
    """Reads the outputs that a result kept, by their id."""


@dataclass(frozen=True)
class RunHistory:
    """One workload on one engine. What is None was never written, or could not be read."""

    id: str
    run: evidence.Run | None = None
    workload: evidence.Workload | None = None
    outputs: Stream[evidence.OutputRecord] | None = None
    steps: Stream[evidence.StepRecord] | None = None
    ranks: Mapping[int, Stream[evidence.RankRecord]] = field(default_factory=dict)
    core: Stream[evidence.CoreRecord] | None = None
    """Only where the engine core shares its host's process and ranks are recorded."""
    forensics: Stream[evidence.ForensicRecord] | None = None
    """Only of a run whose engine hung or died."""
    engine: EngineHistory | None = None
    sample: evidence.Sample | None = None
    """Only of a run that was measured."""
    calls: Mapping[str, CallHistory] = field(default_factory=dict)
    """Id -> captured call, for those of the run's ranks that are stored and can be read."""
    replays: tuple[ReplayHistory, ...] = ()
    """Those that ran any of these calls."""
