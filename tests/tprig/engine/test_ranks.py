"""Rank order of a real engine at TP2: proven where it holds, and told where a rank is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fixtures.cases import RANK_RECORDERS, formula
from tests.fakes.collectives import claim
from tests.tprig.engine.bench import LONG, RECIPE, Bench, order
from tests.tprig.engine.test_deaths import NEVER, Strike, struck
from tprig import evidence
from tprig.checkers.verdict import judge_claim
from tprig.engine import Deadlines, Engine
from tprig.forensics import Stall

CLAIM = claim(
    exact=formula(RECIPE.num_layers),
    runs={"run": "r"},
    minima={"collectives": 1, "steps": 1, "decisions": 1, "ranks": 2},
)
HASTY = Deadlines(progress_s=NEVER.progress_s, stall=Stall(nobody_computes_s=3.0))
"""A hang is noticed soon; an engine that computes is waited for."""


def judged(bench: Bench) -> evidence.Verdict:
    return judge_claim(CLAIM, {"r": bench.history("r")})


def test_ranks_of_an_engine_keep_their_order(bench: Bench) -> None:
    """As many collectives as the formula has it, on both layers, and as many steps as were made."""
    engine = bench.started(2)
    engine.run(order("r", recorders=RANK_RECORDERS))
    assert engine.describe().wrapped == []
    engine.stop()
    verdict = judged(bench)
    assert verdict.verdict == "pass", verdict.reason
    history = bench.history("r")
    steps = history.steps
    assert steps is not None
    made = verdict.measured
    assert made["steps"] == len(steps.records)
    drafted = made["steps"] * 2
    assert made["all_reduces"] == made["steps"] * (2 * RECIPE.num_layers + 1) + drafted * 3
    assert made["gathers"] == made["steps"] + drafted
    assert made["wire_all_reduces"] == made["all_reduces"]
    assert made["wire_gathers"] == made["gathers"]
    assert history.forensics is None
    # Each step that the engine core sent, and whatever it sent when there was nothing to do.
    assert history.core is not None
    assert history.core.complete
    assert made["broadcasts"] >= made["steps"]
    methods = {r.method for r in history.core.records if isinstance(r, evidence.Broadcast)}
    assert {"execute_model", "sample_tokens"} <= methods
    assert not any(method.startswith("tprig_") for method in methods)


def wire() -> str:
    """The seams of the wire that this machine's CPU has: shared memory needs AVX-512."""
    return "cpu_shm" if "avx512f" in Path("/proc/cpuinfo").read_text() else "torch"


@pytest.mark.parametrize(
    "path", ["group.all_reduce", "group.all_gather", "wire", "speculator.propose"]
)
def test_without_any_one_hook_the_claim_is_open(bench: Bench, path: str) -> None:
    """The seam of one path is declared to be elsewhere, so that nothing is hooked there."""
    seam = f"{wire()}.all_reduce" if path == "wire" else path
    engine = bench.started(2, seams={seam: {"attribute": "nowhere"}})
    engine.run(order("r", recorders=RANK_RECORDERS))
    engine.stop()
    verdict = judged(bench)
    assert (verdict.verdict, verdict.failures) == ("unknown", {})
    expected = "draft" if path == "speculator.propose" else seam
    assert f"{expected} is not watched" in verdict.reason


# --- hangs --------------------------------------------------------------------------------------


def hung(bench: Bench, engine: Engine, event: evidence.EventName) -> evidence.Finding:
    """What the records of a run that was lost say of its ranks."""
    assert event in bench.names(engine)
    history = bench.history("r")
    assert history.forensics is not None
    assert {r.rank for r in history.forensics.records} == {0, 1}
    verdict = judged(bench)
    assert verdict.verdict == "fail", verdict.reason
    return verdict.findings[0]


class StrikeLate(Strike):
    """Strikes when some steps have been made, so that it is known what ranks usually do."""

    steps = 3

    def __call__(self, *arguments: object) -> None:
        self.steps -= 1
        if self.steps < 0:
            super().__call__(*arguments)


def test_a_rank_that_is_stopped_is_named_with_what_its_peer_waits_in(bench: Bench) -> None:
    engine = bench.started(2, deadlines=NEVER)
    engine_order = order("r", LONG, recorders=RANK_RECORDERS)
    error = struck(bench, engine, StrikeLate(engine, "rank1", signal.SIGSTOP, HASTY), engine_order)
    assert error.event == "deadline"
    finding = hung(bench, engine, "deadline")
    assert (finding.anomaly, finding.where.rank) == ("rank.stall", 1)
    assert "rank 1, whose process is stopped," in finding.message
    assert "in tp:0" in finding.message
    stacks = bench.event(engine, "stacks")
    assert len(stacks.paths) >= 2


def test_a_rank_that_is_killed_is_named_with_what_its_peer_waits_in(bench: Bench) -> None:
    engine = bench.started(2, deadlines=NEVER)
    engine_order = order("r", LONG, recorders=RANK_RECORDERS)
    error = struck(bench, engine, StrikeLate(engine, "rank1", signal.SIGKILL), engine_order)
    assert error.event == "crashed"
    finding = hung(bench, engine, "crashed")
    assert (finding.anomaly, finding.where.rank) == ("rank.stall", 1)
    assert "rank 1, whose process is dead," in finding.message


def test_a_rank_that_leaves_out_a_gather_is_named_with_the_gather(bench: Bench) -> None:
    engine = bench.started(2, deadlines=NEVER)
    engine._deadlines = HASTY
    engine_order = order("r", LONG, recorders=RANK_RECORDERS, faults={"worker": ["gather-skipped"]})
    error = struck(bench, engine, None, engine_order)
    assert error.event in ("deadline", "crashed")
    finding = hung(bench, engine, error.event)
    assert (finding.anomaly, finding.where.rank) == ("collective.missing", 1)
    assert "expected all_gather of float32" in finding.message
    assert finding.where.step == 2
