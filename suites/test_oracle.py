"""Captured calls of the rejection sampler, run again, return the same bits: TP1 and TP2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.cases import OracleCase
from fixtures.rig import Rig


def cases() -> Iterator[Any]:
    """One at each TP size; each captures with both ways of sampling drafts."""
    for tp in (1, 2):
        case = OracleCase(tp=tp)
        yield pytest.param(case, id=case.id, marks=getattr(pytest.mark, f"tp{tp}"))


@pytest.mark.parametrize("oracle", list(cases()))
def test_oracle(rig: Rig, oracle: OracleCase, request: pytest.FixtureRequest) -> None:
    rig.capture(oracle, request.node.nodeid)
    rig.check(request.node.nodeid)
