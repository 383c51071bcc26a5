"""Policy, pure: which tests to start next, so that nobody waits for devices that others hold.

Jobs are rigid: each needs its devices all at once and for all of its time. They are started longest
first, and whenever the next one does not fit, the longest that does is started in its stead (list
scheduling). No device is left idle while a job that fits it waits, so that the makespan is at most
twice the optimum, whatever the durations (Garey & Graham, SIAM J. Comput. 4, 1975); with many jobs
it is within a few percent of it, because short and narrow ones are kept for the gaps at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one worker runs on one set of devices, without a break."""

    key: int
    """Its place in the order of collection, which decides where nothing else does."""
    width: int
    """Devices it needs at once; 0 for what needs none."""
    duration_s: float | None
    """As recorded; `None` when it was never seen."""


def ordered(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Returns the jobs by urgency: unknown ones first, then longest first, wide before narrow.

    A job of unknown length may be the longest of all; started last, it would be waited for alone.
    """
    return tuple(
        sorted(
            jobs,
            key=lambda job: (
                job.duration_s is not None,
                -(job.duration_s or 0.0),
                -job.width,
                job.key,
            ),
        )
    )


def startable(pending: Sequence[Job], free: int, workers: int) -> tuple[Job, ...]:
    """Returns the jobs to start now.

    Args:
        pending: In the order of `ordered`.
        free: Devices that nobody holds.
        workers: Workers that have nothing to do; each takes one job.
    """
    chosen: list[Job] = []
    for job in pending:
        if len(chosen) == workers:
            break
        if job.width <= free:
            chosen.append(job)
            free -= job.width
    return tuple(chosen)


def lower_bound_s(jobs: Sequence[tuple[int, float]], devices: int) -> float:
    """Returns the time in which nobody could be done: by area, or by the longest job.

    Args:
        jobs: Width and duration in seconds of each.
        devices: How many there are.
    """
    area_s = sum(width * duration_s for width, duration_s in jobs) / devices
    return max(area_s, max((duration_s for _, duration_s in jobs), default=0.0))
