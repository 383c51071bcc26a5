"""The runs of a comparison, made on stand-ins for engines: order, faults, links and verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.fakes import bundles, histories, measured
from tests.tprig.checkers.ab.designs import comparison
from tprig import evidence
from tprig.ab.bench import Bench
from tprig.ab.measuring import DIAGNOSTICS, Job, Measurement
from tprig.bundle import Bundle, BundleError, Writer, load
from tprig.engine import Order
from tprig.history import RunHistory
from tprig.judged import judge_again, verdicts_of


@dataclass
class StandIn:
    """Stands for an engine: writes what a run leaves behind, and notes what it was asked."""

    id: str
    runs: dict[str, RunHistory]
    """By role, what each measured run of this arm comes to."""
    writer: Writer
    by_run: dict[str, str]
    orders: list[Order] = field(default_factory=list)

    @property
    def spec(self) -> Any:  # noqa: ANN401 - a part of an EngineSpec
        engine = next(iter(self.runs.values())).engine
        assert engine is not None
        return SimpleNamespace(arm=lambda: engine.arm)

    @property
    def processes(self) -> Any:  # noqa: ANN401 - a part of Processes
        return SimpleNamespace(pids=tuple)

    def run(self, order: Order) -> None:
        self.orders.append(order)
        role = self.by_run.get(order.run)
        if role is None:
            return
        run = self.runs[role]
        faults = [name for names in order.faults.values() for name in names]
        record = evidence.Run(
            id=order.run,
            engine=self.id,
            test=order.test,
            recorders=list(order.recorders),
            faults=faults,
            started="2026-12-01T08:00:10.000000Z",
            elapsed_s=1.0,
            complete=True,
            rank_streams=1,
        )
        self.writer.document(f"runs/{order.run}/run.json", record)
        self.writer.document(f"runs/{order.run}/requests.json", order.workload)
        streams = (("outputs", run.outputs), ("steps", run.steps), ("rank", run.ranks[0]))
        for kind, stream in streams:
            bundles._write_stream(self.writer, kind, order.run, stream)


class Scene:
    """A comparison measured on stand-ins, and judged from the disk."""

    def __init__(self, root: Path, case: measured.Measured) -> None:
        self.case = case
        self.writer = Writer(root)
        self.said: list[str] = []
        by_run = {run: role for role, run in case.claim.runs.items()}
        self.engines = {
            arm: StandIn(
                f"engine-{arm}",
                {role: run for role, run in case.runs.items() if role.endswith(arm)},
                self.writer,
                by_run,
            )
            for arm in "ab"
        }

    def measure(self) -> None:
        workload = self.case.runs["p000.a"].workload
        assert workload is not None
        lease = SimpleNamespace(affinity=frozenset({0}), devices=())
        bench = SimpleNamespace(engines=self.engines, lease=lease, pids=[])
        job = Job(claim=self.case.claim, workload=workload, platform="cpu")
        self.writer.document("plan.json", histories.plan([self.case.claim]))
        Measurement(job, cast("Bench", bench), self.writer, self.said.append).make()

    def bundle(self) -> Bundle:
        writer = self.writer
        writer.document("environment.json", bundles.ENVIRONMENT)
        plan = histories.plan([self.case.claim])
        ledger = histories.stream("ledger.jsonl", bundles._ledger(plan))
        bundles._write_stream(writer, "ledger", writer.bundle, ledger)
        for arm, engine in self.engines.items():
            history = self.case.runs[f"p000.{arm}"].engine
            assert history is not None
            assert history.id == engine.id
            bundles._write_engine(writer, history)
        writer.seal()
        writer.document("verdicts.json", verdicts_of(load(writer.root)))
        writer.seal()
        return load(writer.root)


def judged(scene: Scene) -> evidence.Verdict:
    verdicts = judge_again(scene.bundle()).verdicts
    assert verdicts is not None
    return verdicts.verdicts[0]


def pairs_of(orders: Sequence[Order]) -> list[str]:
    return [order.run for order in orders if "-p" in order.run]


def test_what_was_measured_holds_against_its_plan(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "bundle", measured.measured(comparison(4, warm_ups=3)))
    scene.measure()
    verdict = judged(scene)
    assert verdict.verdict == "pass", verdict.reason
    assert verdict.measured["pairs"] == 4
    assert sum("tokens/s" in line for line in scene.said) == 10


def test_a_loss_is_found_from_the_disk(tmp_path: Path) -> None:
    slow = measured.measured(comparison(4), measured.steady(loss=0.1))
    scene = Scene(tmp_path / "bundle", slow)
    scene.measure()
    assert list(judged(scene).failures) == ["cost.regression"]


def test_arms_are_warmed_up_alike_and_timed_without_a_recorder(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "bundle", measured.measured(comparison(4, warm_ups=3)))
    scene.measure()
    for engine in scene.engines.values():
        *timed, last = engine.orders
        assert len(timed) == 3 + 4
        assert all(order.timed and not order.recorders for order in timed)
        assert (last.timed, last.recorders) == (False, DIAGNOSTICS)


def test_faults_fall_into_the_planned_pairs_of_arm_b(tmp_path: Path) -> None:
    planted = comparison(4, planted={"slow-10": [0, 1, 2, 3], "stall": [2]})
    scene = Scene(tmp_path / "bundle", measured.measured(planted))
    scene.measure()
    a, b = scene.engines["a"].orders, scene.engines["b"].orders
    assert all(not order.faults for order in a)
    struck = {o.run[-6:-2]: dict(o.faults) for o in b if o.run in pairs_of(b)}
    assert struck["p000"] == {"worker": ["slow-10"]}
    assert struck["p002"] == {"worker": ["slow-10", "stall"]}
    assert not b[-1].faults
    assert judged(scene).measured["void pairs"] == 0


def test_a_stream_that_cannot_be_read_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path / "bundle", measured.measured(comparison(4)))
    monkeypatch.setattr(StandIn, "run", lambda _self, _order: None)
    with pytest.raises(BundleError, match=r"outputs.jsonl could not be read back"):
        scene.measure()
