"""Known bugs, planted in a running engine, are caught by the anomaly that names them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.faults import FaultCase, fault_cases
from fixtures.rig import Rig


def cases() -> Iterator[Any]:
    """Every fault at every tensor-parallel size that it can be planted at."""
    for case in fault_cases():
        marks = [getattr(pytest.mark, f"tp{case.tp}")]
        if case.fault.cuda_only:
            marks.append(pytest.mark.cuda_only)
        yield pytest.param(case, id=case.id, marks=marks)


@pytest.mark.faults
@pytest.mark.parametrize("fault", list(cases()))
def test_fault_is_caught(rig: Rig, fault: FaultCase, request: pytest.FixtureRequest) -> None:
    rig.plant(fault, request.node.nodeid)
    rig.check(request.node.nodeid)
