"""Replay changes nothing, and every emitted token's support is right: TP1 and TP2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.cases import (
    BASE,
    CHUNKED,
    EAGER,
    OWN_CORE,
    PREEMPTION,
    SHORT,
    SYNCHRONOUS,
    Case,
    Draft,
    Scenario,
)
from fixtures.rig import Rig

MATRIX: tuple[tuple[Draft, Scenario], ...] = (
    ("greedy", BASE),
    ("greedy", CHUNKED),
    ("greedy", OWN_CORE),
    ("greedy", SYNCHRONOUS),
    ("greedy", EAGER),
    ("probabilistic", SHORT),
    ("greedy", PREEMPTION),
)


def cases() -> Iterator[Any]:
    """Every cell of the matrix at TP1 and TP2."""
    for tp in (1, 2):
        for draft, scenario in MATRIX:
            case = Case(tp=tp, draft=draft, scenario=scenario)
            marks = [getattr(pytest.mark, f"tp{tp}")]
            if scenario.only == "cuda":
                marks.append(pytest.mark.cuda_only)
            yield pytest.param(case, id=case.id, marks=marks)


@pytest.mark.parametrize("case", list(cases()))
def test_replay(rig: Rig, case: Case, request: pytest.FixtureRequest) -> None:
    rig.record(case, request.node.nodeid)
    rig.check(request.node.nodeid)


PARITY = [Case(tp=2), Case(tp=2, draft="probabilistic", scenario=SHORT)]


@pytest.mark.tp2
@pytest.mark.parametrize("parity", PARITY, ids=lambda case: f"{case.draft}-{case.scenario.name}")
def test_tp_parity(rig: Rig, parity: Case, request: pytest.FixtureRequest) -> None:
    """Rests on what the cases above recorded at TP1 and TP2."""
    del parity
    rig.check(request.node.nodeid)
