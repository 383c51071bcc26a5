"""Histories of paired measurements: what two persistent engines would have left behind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import msgspec
import numpy as np

from tests.fakes import histories, rows
from tests.tprig.checkers.ab.designs import comparison
from tprig import evidence
from tprig.checkers.ab.chain import Conditions, digest, link, roles
from tprig.evidence import Claim, Comparison
from tprig.history import EngineHistory, RunHistory

STEPS = 20
STEP_NS = 10_000_000
SECOND_NS = 1_000_000_000
REQUESTS = 2

Slowness = Callable[[str, int], float]
"""(arm, pair) -> how much longer a step takes than usual, as a factor."""


@dataclass(frozen=True)
class Measured:
    """A claim on cost and the runs that it rests on."""

    claim: Claim
    runs: Mapping[str, RunHistory]
    """Role -> history."""

    @property
    def by_id(self) -> dict[str, RunHistory]:
        """Run id -> history, as a bundle has them."""
        return {run.id: run for run in self.runs.values()}

    def edited(self, role: str, change: Callable[[RunHistory], RunHistory]) -> Measured:
        """With one run changed afterwards."""
        return replace(self, runs={**self.runs, role: change(self.runs[role])})


def steady(loss: float = 0.0, deviation: float = 0.002, seed: int = 3) -> Slowness:
    """Arm b loses so much throughput in every pair, but for a little noise."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((2, 1000)) * deviation

    def slowness(arm: str, pair: int) -> float:
        jitter = float(noise[int(arm == "b"), pair])
        return (1 + jitter) / (1 - loss if arm == "b" else 1)

    return slowness


def claim(design: Comparison) -> Claim:
    """A claim on cost, with a run for each role of its comparison."""
    return evidence.Claim(
        id=f"ab-{design.shape}/cost",
        test="tprig ab",
        checker="cost",
        anomalies=["cost.record", "cost.regression"],
        runs={role: f"ab-{design.shape}-{role.replace('.', '-')}" for role in roles(design)},
        tensor_parallel_size=1,
        minima={"pairs": len(design.order)},
        comparison=design,
    )


def measured(
    design: Comparison | None = None,
    slowness: Slowness | None = None,
    *,
    replays: Sequence[bool] = (False, True),
    late: Callable[[RunHistory], RunHistory] | None = None,
    late_pairs: Collection[int] | None = None,
    readings: Mapping[int, tuple[evidence.GpuReading, ...]] | None = None,
) -> Measured:
    """What measuring a comparison leaves behind.

    Args:
        design: by default ten pairs.
        slowness: by default none, and a little noise.
        replays: whether replay is on, by arm.
        late: what happened to arm b's runs while they were measured.
        late_pairs: to which of them; by default all.
        readings: of arm b's GPUs, by pair.
    """
    design = design or comparison()
    slowness = slowness or steady()
    planned = claim(design)
    engines = {arm: _engine(arm, replay) for arm, replay in zip("ab", replays, strict=True)}
    runs: dict[str, RunHistory] = {}
    previous, clock = None, count(0, 30 * SECOND_NS)
    for position, role in enumerate(roles(design)):
        name, arm = role.split(".")
        pair = int(name[1:]) if name.startswith("p") else -1
        run = _run(planned.runs[role], engines[arm], slowness(arm, pair))
        if pair < 0:
            run = _with_copies(run, arm)
        elif arm == "b":
            planted = [fault for fault, pairs in design.planted.items() if pair in pairs]
            run = _with_faults(run, planted)
            if late is not None and (late_pairs is None or pair in late_pairs):
                run = late(run)
        mine = (readings or {}).get(pair, ()) if arm == "b" else ()
        conditions = Conditions(next(clock), 0.1, mine)
        sample = link(planned, run, conditions, position=position, previous=previous)
        previous = digest(sample)
        runs[role] = replace(run, sample=sample)
    return Measured(planned, runs)


def _engine(arm: str, replay: bool) -> EngineHistory:  # noqa: FBT001
    return histories.engine(f"engine-{arm}", masks=replay)


def _with_faults(run: RunHistory, faults: list[str]) -> RunHistory:
    assert run.run is not None
    return replace(run, run=msgspec.structs.replace(run.run, faults=faults))


def _run(name: str, engine: EngineHistory, slowness: float) -> RunHistory:
    row = rows.row(3, {3: 0.0})
    emissions = [
        evidence.Emission(
            step=step,
            request=f"r{request}",
            first=step,
            rows=[row],
            supports=None,
            finish_reason="length" if step == STEPS - 1 else None,
        )
        for step in range(STEPS)
        for request in range(REQUESTS)
    ]
    return RunHistory(
        id=name,
        run=_record(name, engine.id),
        workload=_workload(),
        outputs=histories.stream(f"runs/{name}/outputs.jsonl", emissions),
        steps=histories.stream(f"runs/{name}/steps.jsonl", list(_steps(slowness))),
        ranks={0: histories.stream(f"runs/{name}/ranks/rank0.jsonl", [])},
        engine=engine,
    )


def _record(name: str, engine: str) -> evidence.Run:
    return evidence.Run(
        id=name,
        engine=engine,
        test="tprig ab",
        recorders=[],
        faults=[],
        started="2026-12-01T08:00:10.000000Z",
        elapsed_s=1.0,
        complete=True,
        rank_streams=1,
    )


def _workload() -> evidence.Workload:
    sampling = evidence.Sampling(temperature=1.0, max_tokens=STEPS, seed=7, top_k=3)
    requests = [
        evidence.Request(id=f"r{i}", prompt_token_ids=[1, 2], arrival_step=0, sampling=sampling)
        for i in range(REQUESTS)
    ]
    return evidence.Workload(profile="c16", seed=0, vocab_size=16, requests=requests)


def _steps(slowness: float) -> list[evidence.Step]:
    """Steps that take 10 ms, the first one thrice as long, times the slowness."""
    found, at_ns = [], 0
    for step in range(STEPS):
        taken_ns = round(STEP_NS * slowness * (3 if step == 0 else 1 + step / 100))
        found.append(
            evidence.Step(
                step=step,
                start_ns=at_ns,
                end_ns=at_ns + taken_ns,
                running=REQUESTS,
                waiting=0,
                preempted=0,
                drafts=None,
                draft_tokens=None,
                accepted_tokens=None,
                accepted_per_position=None,
            )
        )
        at_ns += taken_ns + 50_000
    return found


def _with_copies(run: RunHistory, arm: str) -> RunHistory:
    """The diagnostic run: two requests of four places each, of which three were committed."""
    tensors = [tensor("sampled_token_ids", "int64", [2, 4], 64)]
    if arm == "b":
        tensors.append(tensor("sampling_mask.token_ids", "int32", [8, 3], 96))
    record = evidence.HostCopies(step=0, tensors=tensors, committed=3)
    assert run.run is not None
    told = msgspec.structs.replace(run.run, recorders=["host-copies"])
    stream = histories.stream(run.ranks[0].path, [record])
    return replace(run, run=told, ranks={0: stream})


def tensor(name: str, dtype: str, shape: list[int], size_bytes: int) -> evidence.HostTensor:
    """One copied tensor."""
    return evidence.HostTensor(
        name=name, dtype=dtype, shape=shape, size_bytes=size_bytes, rows=shape[0]
    )


def resampled(planned: Claim, run: RunHistory) -> RunHistory:
    """The run with a sample that fits it, in the place of the one that it had."""
    old = run.sample
    assert old is not None
    conditions = Conditions(old.began_ns, old.foreign_load, tuple(old.readings))
    sample = link(planned, run, conditions, position=old.position, previous=old.previous)
    return replace(run, sample=sample)


def longer_step(run: RunHistory, step: int = 4, by_ns: int = 1000) -> RunHistory:
    """One time edited, as somebody would who wants another verdict."""
    assert run.steps is not None
    records = list(run.steps.records)
    old = records[step]
    assert isinstance(old, evidence.Step)
    records[step] = msgspec.structs.replace(old, end_ns=old.end_ns + by_ns)
    return replace(run, steps=replace(run.steps, records=tuple(records)))
