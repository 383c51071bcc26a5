"""Foreign load and GPU readings around a run."""

from __future__ import annotations

import os

import pytest

import gpu_scheduler
from tprig.ab.conditions import Watch, _Used, foreign


def test_what_is_ours_is_not_foreign() -> None:
    before, after = _Used(0.0, 100.0, 50.0), _Used(10.0, 118.0, 60.0)
    assert foreign(before, after) == pytest.approx(0.8)


def test_ours_elsewhere_is_never_less_than_nothing() -> None:
    assert foreign(_Used(0.0, 0.0, 0.0), _Used(10.0, 1.0, 5.0)) == 0.0
    assert foreign(_Used(1.0, 0.0, 0.0), _Used(1.0, 1.0, 0.0)) == 0.0


def test_cores_are_watched_and_a_process_that_is_gone_counts_nothing() -> None:
    with Watch(os.sched_getaffinity(0), [2**22 + 1], []) as watch:
        sum(range(10_000))
    assert watch.foreign_load is not None
    assert watch.foreign_load >= 0
    assert watch.readings == []


def test_without_cores_the_load_is_unknown() -> None:
    with Watch(None, [], []) as watch:
        pass
    assert watch.foreign_load is None


def test_gpus_are_read_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = gpu_scheduler.Reading(
        uuid="GPU-1",
        sm_clock_mhz=1980,
        memory_clock_mhz=2619,
        temperature_c=41,
        power_mw=300_000,
        throttle=("gpu_idle",),
        processes=2,
    )
    asked: list[list[str]] = []

    def readings(uuids: list[str]) -> tuple[gpu_scheduler.Reading, ...]:
        asked.append(uuids)
        return (reading,)

    monkeypatch.setattr(gpu_scheduler, "readings", readings)
    with Watch(None, [], ["GPU-1"]) as watch:
        pass
    assert asked[0] == ["GPU-1"]
    assert watch.readings[0].throttle == ["gpu_idle"]
    assert (watch.readings[0].power_mw, watch.readings[0].processes) == (300_000, 2)
