"""Equal runs on equal engines: exact, or it is said where they part first. TP1 and TP2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.comparisons import DeterminismCase
from fixtures.rig import Rig
from tprig.injected import injected

SUITE = "determinism"


def equal() -> Iterator[Any]:
    """Replay is off: what is left is what every comparison of engines rests on."""
    for tp in (1, 2):
        case = DeterminismCase(tp=tp)
        yield pytest.param(case, id=case.id, marks=getattr(pytest.mark, f"tp{tp}"))


@pytest.mark.parametrize("determinism", list(equal()))
def test_equal_runs(rig: Rig, determinism: DeterminismCase, request: pytest.FixtureRequest) -> None:
    rig.record_pairs(determinism, request.node.nodeid)
    rig.check(request.node.nodeid)


def altered() -> Iterator[Any]:
    """One number differs in the second run, at each stage in turn."""
    for tp in (1, 2):
        for name, fault in injected().faults.items():
            if fault.suite == SUITE and tp in fault.sizes:
                case = DeterminismCase(tp=tp, fault=name, replay=name.endswith("mask"))
                yield pytest.param(case, id=case.id, marks=getattr(pytest.mark, f"tp{tp}"))


@pytest.mark.faults
@pytest.mark.parametrize("determinism", list(altered()))
def test_stage_is_named(
    rig: Rig, determinism: DeterminismCase, request: pytest.FixtureRequest
) -> None:
    rig.record_pairs(determinism, request.node.nodeid)
    rig.check(request.node.nodeid)
