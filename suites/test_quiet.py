"""An honest engine is never blamed: many workloads on the same engines, and not one anomaly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.cases import Case, Scenario
from fixtures.rig import Rig

SEEDS = 20


def cases() -> Iterator[Any]:
    """As many seeds at TP1 and at TP2, of which no other test uses one."""
    for tp in (1, 2):
        for seed in range(1, SEEDS + 1):
            scenario = Scenario(name=f"seed{seed}", profile="smoke", seed=1000 * seed)
            case = Case(tp=tp, scenario=scenario)
            yield pytest.param(case, id=case.id, marks=getattr(pytest.mark, f"tp{tp}"))


@pytest.mark.quiet
@pytest.mark.parametrize("case", list(cases()))
def test_honest_engine_is_not_blamed(rig: Rig, case: Case, request: pytest.FixtureRequest) -> None:
    rig.record(case, request.node.nodeid)
    rig.check(request.node.nodeid)
