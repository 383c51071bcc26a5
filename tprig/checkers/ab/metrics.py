"""What one run measured, computed from its own streams."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tprig.evidence import Emission, Metric, Step
from tprig.history import RunHistory

METRICS: Mapping[Metric, str] = {
    "throughput": "output tokens per second, from the first step's start to the last one's end",
    "step_mean": "mean engine step, s",
    "step_p50": "median engine step of the run (nearest rank), s",
    "step_p95": "95th percentile of the run's engine steps (nearest rank), s",
    "step_p99": "99th percentile of the run's engine steps (nearest rank), s",
    "first_token": "mean time to first token, from the step that took the request in, s",
    "inter_token": "mean time per output token after a request's first emission, s",
}
"""Metric -> what it is. A percentile is of the steps within a run; across ten runs it would be no
more than the worst of them."""


@dataclass(frozen=True)
class Work:
    """What a run did: two runs that did not do the same can not be compared in time."""

    requests: int
    """That came to their end."""
    tokens: int
    steps: int

    def __str__(self) -> str:
        return f"{self.requests} requests, {self.tokens} tokens, {self.steps} steps"


@dataclass(frozen=True)
class Measured:
    """A run's work, and each metric; None where it has no value."""

    work: Work
    values: Mapping[Metric, float | None]


def gain(metric: Metric, a: float, b: float) -> float:
    """The natural logarithm of how much better b is than a: negative is a loss.

    Raises:
        ValueError: for a value that is not above 0.
    """
    if min(a, b) <= 0 or not math.isfinite(a + b):
        raise ValueError(f"expected {metric} above 0 in both runs, found {a:g} and {b:g}")
    return math.log(b / a) if metric == "throughput" else math.log(a / b)


def measure(run: RunHistory) -> Measured:
    """Compute all metrics of a run; one whose evidence lacks has none."""
    steps, emissions = steps_of(run), emissions_of(run)
    tokens = sum(len(emission.rows) for emission in emissions)
    ended = {e.request for e in emissions if e.finish_reason is not None}
    work = Work(len(ended), tokens, len(steps))
    durations_s = sorted((step.end_ns - step.start_ns) / 1e9 for step in steps)
    return Measured(
        work,
        {
            "throughput": _throughput(tokens, steps),
            "step_mean": _mean(durations_s),
            "step_p50": nearest_rank(durations_s, 0.50),
            "step_p95": nearest_rank(durations_s, 0.95),
            "step_p99": nearest_rank(durations_s, 0.99),
            "first_token": _mean(_first_tokens_s(run, steps, emissions)),
            "inter_token": _mean(list(_inter_tokens_s(steps, emissions))),
        },
    )


def steps_of(run: RunHistory) -> list[Step]:
    """The engine steps of a run, in order."""
    records = run.steps.records if run.steps is not None else ()
    return [record for record in records if isinstance(record, Step)]


def emissions_of(run: RunHistory) -> list[Emission]:
    """What a run emitted, in order."""
    records = run.outputs.records if run.outputs is not None else ()
    return [record for record in records if isinstance(record, Emission)]


def nearest_rank(ascending: Sequence[float], fraction: float) -> float | None:
    """The smallest value that at least this fraction of all is no greater than; None of nothing."""
    if not ascending:
        return None
    # A product such as 0.95 * 20 may come out above the whole number that it is.
    place = math.ceil(round(fraction * len(ascending), 9))
    return ascending[max(place, 1) - 1]


def _throughput(tokens: int, steps: Sequence[Step]) -> float | None:
    if not steps:
        return None
    elapsed_ns = steps[-1].end_ns - steps[0].start_ns
    return tokens / (elapsed_ns / 1e9) if elapsed_ns > 0 else None


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _first_tokens_s(
    run: RunHistory, steps: Sequence[Step], emissions: Sequence[Emission]
) -> list[float]:
    """Per request, from the start of the step that it arrived before to its first token.

    A request that waits for a place among those that run has that in its time.
    """
    arrivals = {r.id: r.arrival_step for r in run.workload.requests} if run.workload else {}
    times = {step.step: step for step in steps}
    first: dict[str, int] = {}
    for emission in emissions:
        if emission.rows:
            first.setdefault(emission.request, emission.step)
    return [
        (times[step].end_ns - times[arrivals[request]].start_ns) / 1e9
        for request, step in first.items()
        if step in times and arrivals.get(request) in times
    ]


def _inter_tokens_s(steps: Sequence[Step], emissions: Sequence[Emission]) -> Iterator[float]:
    """Per request, the time between its first and last emission over the tokens after the first."""
    ends_ns = {step.step: step.end_ns for step in steps}
    by_request: dict[str, list[Emission]] = {}
    for emission in emissions:
        if emission.rows:
            by_request.setdefault(emission.request, []).append(emission)
    for mine in by_request.values():
        later = sum(len(emission.rows) for emission in mine[1:])
        if later and mine[0].step in ends_ns and mine[-1].step in ends_ns:
            yield (ends_ns[mine[-1].step] - ends_ns[mine[0].step]) / 1e9 / later
