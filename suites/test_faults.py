"""Known bugs, planted in a running engine, are caught by the anomaly that names them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.cases import Case
from fixtures.rig import Rig
from tprig.injected import injected


def cases() -> Iterator[Any]:
    """Every fault that an engine survives, at TP1 and TP2."""
    faults = injected().faults
    for tp in (1, 2):
        for name, fault in faults.items():
            if fault.lethal or fault.timed:
                continue
            case = Case(tp=tp, fault=name, anomaly=fault.anomaly)
            yield pytest.param(case, id=case.id, marks=getattr(pytest.mark, f"tp{tp}"))


@pytest.mark.faults
@pytest.mark.parametrize("case", list(cases()))
def test_fault_is_caught(rig: Rig, case: Case, request: pytest.FixtureRequest) -> None:
    rig.record(case, request.node.nodeid)
    rig.check(request.node.nodeid)
