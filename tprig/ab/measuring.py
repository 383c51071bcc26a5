"""Makes the runs of one comparison, in the planned order, and links each to the one before."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tprig import evidence
from tprig.ab.bench import Bench
from tprig.ab.conditions import Watch
from tprig.bundle import Writer, reading
from tprig.checkers.ab.chain import COPIES, Conditions, arms_of, digest, link, roles
from tprig.checkers.ab.metrics import measure
from tprig.engine import Order
from tprig.evidence import ArmName
from tprig.history import EngineHistory, RunHistory
from tprig.injected import injected

DIAGNOSTICS = ("host-copies", "device-times")
"""Recorded after the last pair, and never in a timed run."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One comparison to be measured.

    Attributes:
        claim: as the plan has it.
        workload: what every run serves.
        platform: `cpu` cores are watched for foreign load, GPUs are asked themselves.
    """

    claim: evidence.Claim
    workload: evidence.Workload
    platform: str


class Measurement:
    """The runs of one comparison.

    Args:
        job: what is to be measured.
        bench: the engines.
        writer: the bundle.
        say: told what happens.

    Raises (by any method):
        EngineError: an engine was lost; what came before is in the bundle.
        BundleError: the bundle cannot be written.
    """

    def __init__(self, job: Job, bench: Bench, writer: Writer, say: Callable[[str], None]) -> None:
        assert job.claim.comparison is not None
        self._job = job
        self._how = job.claim.comparison
        self._bench = bench
        self._writer = writer
        self._say = say
        self._design = digest(job.claim)
        self._previous: str | None = None
        self._began_ns: int | None = None

    def make(self) -> None:
        """Warm both engines up, measure every pair, then count what is copied."""
        self._say(f"plan {self._design[:16]}: {self._how.a} against {self._how.b}")
        self._warm_up()
        for position, name in enumerate(roles(self._how)):
            self._measured(position, name)

    def _warm_up(self) -> None:
        prefix = self._job.claim.id.partition("/")[0]
        for turn in range(self._how.warm_ups):
            for arm in arms_of("ba" if turn % 2 else "ab"):
                self._run(f"{prefix}-w{turn:02d}-{arm}", arm, timed=True)
        self._say(f"{self._how.warm_ups} warm-ups of each arm")

    def _measured(self, position: int, name: str) -> None:
        place, _, arm = name.partition(".")
        run, which = self._job.claim.runs[name], _arm(arm)
        engine, lease = self._bench.engines[which], self._bench.lease
        assert lease is not None
        on_gpus = self._job.platform == "cuda"
        gpus = [device.id for device in lease.devices] if on_gpus else []
        at_ns = time.monotonic_ns()
        began_ns = self._began_ns = at_ns if self._began_ns is None else self._began_ns
        with Watch(lease.affinity, self._bench.pids, gpus) as watch:
            if place == COPIES:
                self._run(run, which, timed=False)
            else:
                self._run(run, which, timed=True, pair=int(place[1:]))
        history = RunHistory(
            id=run,
            workload=self._job.workload,
            outputs=reading.stream(self._writer.root, f"runs/{run}/outputs.jsonl", "outputs", run),
            steps=reading.stream(self._writer.root, f"runs/{run}/steps.jsonl", "steps", run),
            engine=EngineHistory(engine.id, engine.spec.arm()),
        )
        conditions = Conditions(at_ns - began_ns, watch.foreign_load, tuple(watch.readings))
        sample = link(
            self._job.claim,
            history,
            conditions,
            position=position,
            previous=self._previous,
            design=self._design,
        )
        self._writer.document(f"runs/{run}/sample.json", sample)
        self._previous = digest(sample)
        self._tell(name, history, watch)

    def _run(self, run: str, arm: ArmName, *, timed: bool, pair: int | None = None) -> None:
        planted = [fault for fault, pairs in self._how.planted.items() if pair in pairs]
        faults: dict[str, list[str]] = {}
        for fault in planted if arm == "b" else ():
            faults.setdefault(injected().faults[fault].process, []).append(fault)
        order = Order(
            run=run,
            test=self._job.claim.test,
            workload=self._job.workload,
            recorders=() if timed else DIAGNOSTICS,
            faults=faults,
            timed=timed,
        )
        self._bench.engines[arm].run(order)

    def _tell(self, name: str, history: RunHistory, watch: Watch) -> None:
        found = measure(history)
        speed = found.values["throughput"]
        load = "" if watch.foreign_load is None else f", foreign load {watch.foreign_load:.2f}"
        rate = "unknown" if speed is None else f"{speed:.2f} tokens/s"
        self._say(f"{name}: {rate}, {found.work}{load}")


def _arm(name: str) -> ArmName:
    return "a" if name == "a" else "b"
