"""What replay costs, pair by pair: an A/A first, which says what this machine can resolve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.costs import CostCase
from fixtures.rig import Rig

SHAPES = ("c16", "c64")


def cases() -> Iterator[Any]:
    """Replay off against itself, then against replay on, at TP1 and TP2."""
    for tp in (1, 2):
        for shape in SHAPES:
            for identical in (True, False):
                case = CostCase(tp=tp, shape=shape, identical=identical)
                marks = [pytest.mark.perf, getattr(pytest.mark, f"tp{tp}")]
                yield pytest.param(case, id=case.id, marks=marks)


@pytest.mark.parametrize("cost", list(cases()))
def test_cost(rig: Rig, cost: CostCase, request: pytest.FixtureRequest) -> None:
    rig.measure(cost, request.node.nodeid)
    rig.check(request.node.nodeid)
