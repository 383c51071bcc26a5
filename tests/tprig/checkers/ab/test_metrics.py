"""Metrics of one run, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.fakes import histories, rows
from tests.fakes.measured import measured
from tprig import evidence
from tprig.checkers.ab.metrics import gain, measure, nearest_rank
from tprig.history import RunHistory

MS = 1_000_000


def step(index: int, start_ms: int, end_ms: int) -> evidence.Step:
    return evidence.Step(
        step=index,
        start_ns=start_ms * MS,
        end_ns=end_ms * MS,
        running=1,
        waiting=0,
        preempted=0,
        drafts=None,
        draft_tokens=None,
        accepted_tokens=None,
        accepted_per_position=None,
    )


def emission(at: int, request: str, tokens: int, *, last: bool = False) -> evidence.Emission:
    return evidence.Emission(
        step=at,
        request=request,
        first=0,
        rows=[rows.row(3, {3: 0.0})] * tokens,
        supports=None,
        finish_reason="length" if last else None,
    )


def run() -> RunHistory:
    """Two requests: the first token of r0 after 10 ms, of r1 (which waits) after 40 ms."""
    base = measured().runs["p000.a"]
    steps = [step(0, 0, 10), step(1, 12, 32), step(2, 34, 40), step(3, 41, 45)]
    emissions = [
        emission(0, "r0", 1),
        emission(1, "r0", 2),
        emission(2, "r0", 2, last=True),
        emission(2, "r1", 1),
        emission(3, "r1", 1, last=True),
    ]
    return replace(
        base,
        steps=histories.stream("steps", steps),
        outputs=histories.stream("outputs", emissions),
    )


def test_metrics_of_a_run() -> None:
    found = measure(run())
    assert str(found.work) == "2 requests, 7 tokens, 4 steps"
    assert found.values == pytest.approx(
        {
            "throughput": 7 / 0.045,
            "step_mean": 0.010,
            "step_p50": 0.006,
            "step_p95": 0.020,
            "step_p99": 0.020,
            "first_token": (0.010 + 0.040) / 2,
            "inter_token": (0.030 / 4 + 0.005) / 2,
        }
    )


def test_a_run_without_evidence_has_no_metric() -> None:
    found = measure(RunHistory(id="empty"))
    assert set(found.values.values()) == {None}
    assert found.work.tokens == 0


def test_a_request_with_one_token_has_no_time_between_tokens() -> None:
    outputs = histories.stream("outputs", [emission(0, "r0", 1, last=True)])
    assert measure(replace(run(), outputs=outputs)).values["inter_token"] is None


@pytest.mark.parametrize(
    ("count", "fraction", "expected"),
    [(20, 0.95, 19), (20, 0.5, 10), (21, 0.95, 20), (100, 0.99, 99), (1, 0.99, 1), (3, 0.5, 2)],
)
def test_nearest_rank_by_its_definition(count: int, fraction: float, expected: int) -> None:
    assert nearest_rank(list(range(1, count + 1)), fraction) == expected


def test_nothing_has_no_percentile() -> None:
    assert nearest_rank([], 0.5) is None


def test_a_gain_is_more_throughput_and_less_time() -> None:
    assert gain("throughput", 100, 110) == pytest.approx(math.log(1.1))
    assert gain("step_p95", 110, 100) == pytest.approx(math.log(1.1))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_can_not_be_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="expected step_p50 above 0"):
        gain("step_p50", 1.0, value)
