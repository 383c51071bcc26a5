from __future__ import annotations

import heapq
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.packing import Job, lower_bound_s, ordered, startable

DEVICES = 8


def job(key: int, width: int, duration_s: float | None = None) -> Job:
    return Job(key=key, width=width, duration_s=duration_s)


JOBS = st.lists(
    st.tuples(st.integers(0, DEVICES), st.none() | st.floats(0, 1e4)), min_size=1, max_size=40
).map(lambda drawn: [job(key, *each) for key, each in enumerate(drawn)])


def keys(jobs: Sequence[Job]) -> list[int]:
    return [each.key for each in jobs]


def test_longest_first_then_wide_then_as_collected() -> None:
    jobs = [job(0, 1, 5.0), job(1, 2, 5.0), job(2, 8, 1.0), job(3, 1, 9.0), job(4, 2, 5.0)]
    assert keys(ordered(jobs)) == [3, 1, 4, 0, 2]


def test_what_was_never_seen_may_be_the_longest_and_goes_first() -> None:
    assert keys(ordered([job(0, 1, 900.0), job(1, 1), job(2, 4)])) == [2, 1, 0]


def test_a_job_that_took_no_time_is_no_unknown_one() -> None:
    assert keys(ordered([job(0, 1, 0.0), job(1, 1)])) == [1, 0]


def test_what_does_not_fit_is_passed_by_what_does() -> None:
    pending = [job(0, 8), job(1, 4), job(2, 2), job(3, 1), job(4, 1)]
    assert keys(startable(pending, free=5, workers=9)) == [1, 3]
    assert keys(startable(pending, free=8, workers=9)) == [0]


def test_each_worker_takes_one_job() -> None:
    assert keys(startable([job(0, 1), job(1, 1), job(2, 1)], free=8, workers=2)) == [0, 1]


def test_what_needs_no_device_starts_without_one() -> None:
    assert keys(startable([job(0, 1), job(1, 0)], free=0, workers=2)) == [1]


def test_devices_held_by_others_leave_less_than_none() -> None:
    assert startable([job(0, 1)], free=-2, workers=1) == ()


@pytest.mark.parametrize(
    ("jobs", "bound_s"),
    [([(8, 3.0), (4, 2.0)], 4.0), ([(1, 9.0), (8, 1.0)], 9.0), ([], 0.0), ([(0, 2.0)], 2.0)],
)
def test_lower_bound(jobs: list[tuple[int, float]], bound_s: float) -> None:
    assert lower_bound_s(jobs, DEVICES) == bound_s


@settings(deadline=None)
@given(JOBS, st.integers(0, DEVICES), st.integers(0, 10))
def test_never_more_than_there_is_and_nothing_left_that_fits(
    jobs: list[Job], free: int, workers: int
) -> None:
    pending = ordered(jobs)
    chosen = startable(pending, free, workers)
    left = free - sum(each.width for each in chosen)
    assert left >= 0
    assert len(chosen) <= workers
    assert len(set(keys(chosen))) == len(chosen)
    waiting = [each for each in pending if each not in chosen]
    assert len(chosen) == workers or all(each.width > left for each in waiting)


@settings(deadline=None)
@given(JOBS)
def test_order_keeps_every_job_and_does_not_depend_on_how_they_came(jobs: list[Job]) -> None:
    assert sorted(keys(ordered(jobs))) == keys(jobs)
    assert ordered(reversed(jobs)) == ordered(jobs)


@settings(deadline=None)
@given(JOBS)
def test_makespan_is_at_most_twice_the_bound(jobs: list[Job]) -> None:
    """Garey & Graham's guarantee for list scheduling, of which the docstring speaks."""
    done_s = played(jobs)
    bound_s = lower_bound_s([(each.width, each.duration_s or 0.0) for each in jobs], DEVICES)
    assert bound_s <= done_s * (1 + 1e-9)
    assert done_s <= 2 * bound_s * (1 + 1e-9)


def played(jobs: Sequence[Job]) -> float:
    """Starts what may start whenever a job ends, with a worker for each; returns the makespan."""
    pending, now_s, free = ordered(jobs), 0.0, DEVICES
    running: list[tuple[float, int, int]] = []
    while pending or running:
        chosen = startable(pending, free, len(jobs))
        assert chosen or running, "nothing runs and nothing starts"
        for each in chosen:
            free -= each.width
            heapq.heappush(running, (now_s + (each.duration_s or 0.0), each.key, each.width))
        pending = tuple(each for each in pending if each not in chosen)
        now_s, _, width = heapq.heappop(running)
        free += width
    return now_s
