"""What a checker is given: the records of runs and engines, loaded and typed, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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


@dataclass(frozen=True)
class RunHistory:
    """One workload on one engine. What is None was never written, or could not be read."""

    id: str
    run: evidence.Run | None = None
    workload: evidence.Workload | None = None
    outputs: Stream[evidence.OutputRecord] | None = None
    steps: Stream[evidence.StepRecord] | None = None
    ranks: Mapping[int, Stream[evidence.RankRecord]] = field(default_factory=dict)
    forensics: Stream[evidence.ForensicRecord] | None = None
    """Only of a run whose engine hung or died."""
    engine: EngineHistory | None = None
