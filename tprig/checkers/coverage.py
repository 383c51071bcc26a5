"""Judges whether a run as a whole has seen enough: it finds nothing wrong, it only counts.

What was counted is held against the claim's minima; less than those makes the claim `unknown`, so
that a run which happened to accept nothing does not pass for having tested acceptance.
"""

from __future__ import annotations

from collections import Counter

from tprig.checkers.acceptance import check_acceptance
from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.evidence import Claim


def check_coverage(claim: Claim, runs: Runs) -> Judgement:
    """Sum over all roles what `acceptance` measures."""
    judgement = Judgement()
    total: Counter[str] = Counter()
    for name, run in runs.items():
        part = check_acceptance(claim, {name: run})
        total.update(part.measured)
        judgement.missing += part.missing
    judgement.measured = dict(total)
    return judgement


COVERAGE = Checker(
    name="coverage",
    roles=(),
    needs=("run", "outputs", "ranks"),
    seams=("model_runner.execute_model", "model_runner.sample", "verification"),
    function=check_coverage,
)
