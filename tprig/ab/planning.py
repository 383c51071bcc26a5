"""The plan of a measurement: every claim, order and threshold, before anything runs."""

from __future__ import annotations

from tprig import environment, evidence
from tprig.ab.arms import ArmSpec, changed_files
from tprig.ab.options import Options
from tprig.checkers.ab.chain import COPIES, roles
from tprig.checkers.ab.order import draw_order, draw_pairs
from tprig.clock import utc_now

STALL, STALL_EVERY = "stall", 10
"""The fault that comes now and then: in one pair of so many."""
ANOMALIES = ["cost.record", "cost.regression"]
ENGINE_ANOMALIES = ["engine.crash", "engine.hang", "engine.leak", "gpu.leak", "engine.refusal"]


def comparison(options: Options, shape: str, a: ArmSpec, b: ArmSpec) -> evidence.Comparison:
    """How one shape is measured and judged.

    Raises:
        ValueError: for a number of pairs that cannot be balanced.
    """
    design = options.design
    return evidence.Comparison(
        shape=shape,
        a=environment.redact(a.words),
        b=environment.redact(b.words),
        identical=options.arms.b is None and not design.faults,
        seed=design.seed,
        order=draw_order(design.pairs, design.seed),
        warm_ups=design.warm_ups,
        gates=list(design.gates),
        margin=design.margin,
        equivalence=design.equivalence,
        confidence=design.confidence,
        resamples=design.resamples,
        planted={fault: _struck(fault, design.pairs, design.seed) for fault in design.faults},
        max_foreign_load=design.max_foreign_load,
        only_differs=None if design.only_differs is None else list(design.only_differs),
        changed_files=changed_files(a, b),
    )


def _struck(fault: str, pairs: int, seed: int) -> list[int]:
    if fault == STALL:
        return draw_pairs(pairs, STALL_EVERY, seed)
    return list(range(pairs))


def claims(how: evidence.Comparison, options: Options) -> list[evidence.Claim]:
    """What one comparison must decide: the cost, and that both engines served and went."""
    size, test = options.tensor_parallel_size, options.test
    prefix = "-".join(filter(None, ["ab", f"tp{size}", how.shape, options.name]))
    runs = {name: f"{prefix}-{name.replace('.', '-')}" for name in roles(how)}
    cost = evidence.Claim(
        id=f"{prefix}/cost",
        test=test,
        checker="cost",
        anomalies=ANOMALIES,
        runs=runs,
        tensor_parallel_size=size,
        # Nothing is dropped: a pair that is void is missed.
        minima={"pairs": len(how.order)},
        comparison=how,
    )
    engine = evidence.Claim(
        id=f"{prefix}/engine",
        test=test,
        checker="engine",
        anomalies=ENGINE_ANOMALIES,
        # Those that carry no planted fault.
        runs={arm: runs[f"{COPIES}.{arm}"] for arm in ("a", "b")},
        tensor_parallel_size=size,
        minima={"engines": 2},
    )
    return [cost, engine]


def plan(options: Options, planned: list[evidence.Claim]) -> evidence.Plan:
    """The plan of all of it."""
    return evidence.Plan(
        version=evidence.SCHEMA_VERSION,
        created=utc_now(),
        command=[environment.redact(word) for word in options.command],
        seed=options.design.seed,
        profile="+".join(options.design.shapes),
        platform=options.platform,
        # What the ledger must hold: a command that measures runs no test.
        tests=[],
        claims=planned,
    )
