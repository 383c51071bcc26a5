"""Every rank issues the same collectives in the same order, whatever becomes of the requests.

The default workload, chunked prefill, preemption and probabilistic drafts are judged where they are
run anyway, in `test_correctness`: rank order is a claim of each of its cases at TP2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fixtures.cases import ABORTS, BRIM, FEW, LULLS, SPECULATIVE_TOKENS, Case
from fixtures.rig import Rig

MOST_SPECULATIVE_TOKENS = 7


def cases() -> Iterator[Any]:
    """What happens to requests, then every number of drafted tokens that is not run elsewhere."""
    scenarios = [(scenario, SPECULATIVE_TOKENS) for scenario in (ABORTS, BRIM, LULLS)]
    drafted = set(range(1, MOST_SPECULATIVE_TOKENS + 1)) - {SPECULATIVE_TOKENS}
    scenarios += [(FEW, tokens) for tokens in sorted(drafted)]
    for scenario, tokens in scenarios:
        case = Case(tp=2, scenario=scenario, speculative_tokens=tokens, roles=("on",))
        yield pytest.param(case, id=case.id, marks=pytest.mark.tp2)


@pytest.mark.parametrize("case", list(cases()))
def test_rank_order(rig: Rig, case: Case, request: pytest.FixtureRequest) -> None:
    rig.record(case, request.node.nodeid)
    rig.check(request.node.nodeid)
