"""The pairs of a comparison: measured, or void with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tprig.checkers.ab.chain import role
from tprig.checkers.ab.metrics import Measured, measure
from tprig.evidence import ArmName, Comparison, PairOrder
from tprig.history import RunHistory

_HARMLESS = {"gpu_idle", "applications_clocks_setting"}
"""Reasons for low clocks that hold for both arms alike, or between runs."""


@dataclass(frozen=True)
class Pair:
    """One pair of runs, of which neither is left out."""

    index: int
    order: PairOrder
    a: Measured | None
    """None when the run is not there."""
    b: Measured | None
    began_ns: int | None
    """When its first run began, from the first pair's beginning."""
    void: tuple[str, ...]
    """Why it can not be compared; decided by the plan's rules, none of which looks at the times."""


def pairs_of(comparison: Comparison, runs: Mapping[str, RunHistory]) -> list[Pair]:
    """All pairs of a comparison, in order of time."""
    return [_pair(comparison, runs, index, order) for index, order in enumerate(comparison.order)]


def _pair(
    comparison: Comparison, runs: Mapping[str, RunHistory], index: int, order: PairOrder
) -> Pair:
    arms: dict[ArmName, RunHistory | None] = {"a": None, "b": None}
    for arm in arms:
        arms[arm] = runs.get(role(index, arm))
    void = [reason for arm, run in arms.items() for reason in _faults(comparison, index, arm, run)]
    a, b = (None if run is None else measure(run) for run in arms.values())
    if a is not None and b is not None and a.work != b.work:
        void.append(f"the arms did different work: a {a.work}; b {b.work}")
    samples = [run.sample.began_ns for run in arms.values() if run is not None and run.sample]
    return Pair(index, order, a, b, min(samples, default=None), tuple(void))


def _faults(
    comparison: Comparison, index: int, arm: ArmName, run: RunHistory | None
) -> Iterator[str]:
    if run is None or run.run is None or run.sample is None:
        yield f"arm {arm} was not measured"
        return
    if not run.run.complete:
        yield f"arm {arm} did not come to its end"
    planted = [name for name, pairs in comparison.planted.items() if index in pairs]
    expected = planted if arm == "b" else []
    if sorted(run.run.faults) != sorted(expected):
        yield f"arm {arm}: expected planted faults {expected}, found {run.run.faults}"
    if run.run.recorders:
        yield f"arm {arm}: expected no recorder in a timed run, found {run.run.recorders}"
    load, most = run.sample.foreign_load, comparison.max_foreign_load
    if most is not None and load is not None and load > most:
        yield f"arm {arm}: {load:.2f} cores of foreign load, at most {most:g} allowed"
    yield from (f"arm {arm}: {reason}" for reason in _device_faults(run))


def _device_faults(run: RunHistory) -> Iterator[str]:
    assert run.sample is not None
    reasons = {
        (reading.uuid, reason)
        for reading in run.sample.readings
        for reason in reading.throttle or ()
        if reason not in _HARMLESS
    }
    yield from (f"{uuid} was throttled: {reason}" for uuid, reason in sorted(reasons))
    counts: dict[str, set[int]] = {}
    for reading in run.sample.readings:
        if reading.processes is not None:
            counts.setdefault(reading.uuid, set()).add(reading.processes)
    for uuid, found in counts.items():
        if len(found) > 1:
            yield f"processes on {uuid} came or went: {sorted(found)} were seen"
