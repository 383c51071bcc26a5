"""Judges whether runs are exact that nothing should tell apart: the boundary of determinism.

Before two engines are compared, it must be known whether two runs of the same requests on two
equal engines are equal. Where they are not, no comparison of engines decides anything, and the
claims that rest on one are withdrawn; what is told is where such runs part first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tprig.checkers.boundary import Divergence, digests_compared, divergence
from tprig.checkers.caught import MISNAMED, SURVIVED, strikes
from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.wording import counted
from tprig.evidence import Claim, Finding
from tprig.history import RunHistory

ANOMALY = "determinism.stage"
FIRST, SECOND = "-first", "-second"
PLANTED = "drift-"
"""Before the stage, in the names of faults that alter one of two equal runs."""


def pairs(runs: Mapping[str, RunHistory]) -> Iterator[tuple[RunHistory, RunHistory]]:
    """The pairs among runs in roles `1-first`, `1-second`, `2-first`, ..."""
    for role, run in runs.items():
        other = runs.get(role.removesuffix(FIRST) + SECOND)
        if role.endswith(FIRST) and other is not None:
            yield run, other


def partings(runs: Mapping[str, RunHistory]) -> list[Divergence]:
    """Where each of the pairs that are not exact parts first."""
    found = [divergence(first, second) for first, second in pairs(runs)]
    return [parted for parted in found if parted is not None]


def told(found: list[Divergence], of: int) -> str:
    """Pairs that are not exact, in words."""
    return f"{len(found)} of {counted(of, 'pair')} of equal runs part; the first at {found[0]}"


def check_determinism(claim: Claim, runs: Runs) -> Judgement:  # noqa: ARG001 - a checker's signature
    """Judge each pair of roles `<n>-first` and `<n>-second`.

    Measured: `pairs`, `exact` ones of them, and `digests` that were compared.
    """
    every = list(pairs(runs))
    found = partings(runs)
    judgement = Judgement(
        {
            "pairs": len(every),
            "exact": len(every) - len(found),
            "digests": sum(digests_compared(*pair) for pair in every),
        }
    )
    for parted in found:
        judgement.findings.append(
            Finding(
                anomaly=ANOMALY,
                message=f"expected two equal runs, found that they part at {parted}",
                where=parted.where,
            )
        )
    if found:
        judgement.withdrawn = f"{ANOMALY}: {told(found, len(every))}"
        judgement.notes["first stages"] = ", ".join(parted.stage for parted in found)
    return judgement


def check_located(claim: Claim, runs: Runs) -> Judgement:  # noqa: ARG001 - a checker's signature
    """Judge a pair of which the second run was altered at one stage: is that stage named?

    Measured: `strikes` of the fault, and `digests` that were compared.
    """
    judgement = Judgement({"strikes": 0, "digests": 0})
    for first, second in pairs(runs):
        struck = list(strikes(second))
        judgement.measured["strikes"] += len(struck)
        judgement.measured["digests"] += digests_compared(first, second)
        if not struck:
            judgement.missing.append("the fault never struck: nothing was altered")
            continue
        where, fault = min(struck, key=lambda strike: (strike[1].step or 0, strike[0].file))
        stage, parted = fault.name.removeprefix(PLANTED), divergence(first, second)
        if parted is None:
            message = f"expected the runs to part at stage {stage}, found them equal"
            judgement.findings.append(Finding(anomaly=SURVIVED, message=message, where=where))
        elif (parted.stage, parted.step) != (stage, fault.step):
            message = (
                f"expected the runs to part at stage {stage}, step {fault.step}, found {parted}"
            )
            judgement.findings.append(
                Finding(anomaly=MISNAMED, message=message, where=parted.where)
            )
        else:
            judgement.notes |= {"struck": fault.detail, "located": str(parted)}
    return judgement


DETERMINISM = Checker(
    name="determinism",
    roles=("1-first", "1-second"),
    needs=("run", "workload", "outputs", "ranks"),
    seams=("model_runner.execute_model", "model_runner.sample", "verification"),
    function=check_determinism,
)
LOCATED = Checker(
    name="located",
    roles=("1-first", "1-second"),
    needs=("run", "workload", "outputs", "ranks"),
    seams=("model_runner.execute_model", "model_runner.sample", "verification"),
    function=check_located,
)
