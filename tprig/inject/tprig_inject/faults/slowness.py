"""Faults in how long a step takes: nothing that a step computes is altered."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tprig_inject.faults.base import Fault, Once

STALL_STEP = 2
"""The step before which the engine stands still: some have gone before, so that it shows."""
STALL_STEPS = 20.0
"""For as long as so many steps take."""


def slower(fraction: float) -> Callable[[Once], None]:
    """Make every step take longer by this fraction of what it would take."""

    def plant(once: Once) -> None:
        _delay(once, lambda _step, period_s: fraction * period_s)

    return plant


def stall(once: Once) -> None:
    """Make one step wait as long as many take."""

    def delay_s(step: int, period_s: float) -> float:
        return STALL_STEPS * period_s if step == STALL_STEP else 0.0

    _delay(once, delay_s)


def _delay(once: Once, delay_s: Callable[[int, float], float]) -> None:
    """Before each model step wait, as told by the time that the one before took without a wait."""
    last_s: float | None = None

    def wrap(original: Any) -> Any:
        def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal last_s
            now_s = time.perf_counter()
            waits_s = 0.0 if last_s is None else delay_s(once.context.step, now_s - last_s)
            if waits_s > 0 and not once.spent:
                once.strike(f"{1e3 * waits_s:.3f} ms before this step")
            last_s = now_s + waits_s
            _spin(last_s)
            return original(self, scheduler_output, *args, **kwargs)

        return execute_model

    once.wrap("model_runner.execute_model", wrap)


def _spin(until_s: float) -> None:
    """Wait busily: a sleep ends late by as much as a step of a small model takes."""
    while time.perf_counter() < until_s:
        pass


FAULTS = {
    "slow-4": Fault(
        plant=slower(0.04),
        resembles="a synchronisation or a copy more in every step: 4% of its time",
        anomaly="cost.regression",
        suite="performance",
    ),
    "slow-10": Fault(
        plant=slower(0.10),
        resembles="a synchronisation or a copy more in every step: 10% of its time",
        anomaly="cost.regression",
        suite="performance",
    ),
    "stall": Fault(
        plant=stall,
        resembles="a pause that comes now and then: a collection, a page fault, a slow clock",
        anomaly="cost.regression",
        suite="performance",
    ),
}
