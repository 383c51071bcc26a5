"""A candidate does what the baseline does, with each drafter: TP1 and TP2.

Both are the vLLM under test unless `--tprig-baseline-*` or `--tprig-candidate-*` name others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import pytest

from fixtures.cases import Draft, Method
from fixtures.comparisons import RegressionCase
from fixtures.rig import Rig


def cases() -> Iterator[Any]:
    """Every drafter with both ways of sampling drafts, at TP1 and TP2."""
    for tp in (1, 2):
        for method in get_args(Method):
            for draft in get_args(Draft):
                case = RegressionCase(tp=tp, method=method, draft=draft)
                yield pytest.param(case, id=case.id, marks=getattr(pytest.mark, f"tp{tp}"))


@pytest.mark.parametrize("arms", list(cases()))
def test_regression(rig: Rig, arms: RegressionCase, request: pytest.FixtureRequest) -> None:
    rig.record_arms(arms, request.node.nodeid)
    rig.check(request.node.nodeid)
