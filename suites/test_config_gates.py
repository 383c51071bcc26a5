"""What replay must be refused with is refused, and what is accepted is judged: TP1 and TP2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.cases import BLOCK, SYNTHETIC, Case, Draft
from fixtures.gates import GATES, Gate
from fixtures.rig import Rig


@pytest.mark.parametrize(
    "gate",
    [pytest.param(gate, id=gate.id, marks=getattr(pytest.mark, f"tp{gate.tp}")) for gate in GATES],
)
def test_gate(rig: Rig, gate: Gate, request: pytest.FixtureRequest) -> None:
    rig.record_gate(gate, request.node.nodeid)
    rig.check(request.node.nodeid)


def accepted() -> Iterator[Any]:
    """Ways to verify drafts that vLLM accepts together with replay."""
    for tp in (1, 2):
        for scenario in (SYNTHETIC, BLOCK):
            # Greedy drafts leave the support more often; block verification wants draft logits.
            draft: Draft = "greedy" if scenario is SYNTHETIC else "probabilistic"
            case = Case(tp=tp, scenario=scenario, draft=draft)
            yield pytest.param(case, id=case.id, marks=getattr(pytest.mark, f"tp{tp}"))


@pytest.mark.parametrize("case", list(accepted()))
def test_accepted_configuration(rig: Rig, case: Case, request: pytest.FixtureRequest) -> None:
    rig.record(case, request.node.nodeid)
    rig.check(request.node.nodeid)
