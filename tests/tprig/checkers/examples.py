"""For each anomaly a literal history that shows it, next to one that does not.

Those of outputs are made of one request whose four rows, drafts and counters are written out here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from tests.fakes import collectives, histories, measured, oracles, rows
from tests.tprig.checkers import collective_examples, edits, oracle_examples
from tprig import evidence
from tprig.history import RunHistory

HALF, QUARTER = math.log(0.5), math.log(0.25)
VOCAB_SIZE = 16
TOP_K = 3

# Token emitted -> the row's probabilities: one half for the first, a quarter for each other.
ROWS = (
    (3, (3, 5, 7)),
    (5, (2, 5, 9)),
    (9, (4, 9, 11)),
    (6, (1, 6, 8)),
)


@dataclass(frozen=True)
class Example:
    """A claim with a history that breaks it and a neighbour that keeps it."""

    claim: evidence.Claim
    clean: Mapping[str, RunHistory]
    violating: Mapping[str, RunHistory]


def literal(name: str, *, masks: bool, tp: int = 1) -> RunHistory:
    """One request: a prefill that samples 3, then drafts 5, 9, 12 of which 5 and 9 are accepted."""
    emitted = [_row(token, kept) for token, kept in ROWS]
    supports = [sorted(kept) for _, kept in ROWS] if masks else None
    outputs = [_emission(0, emitted[:1], supports and supports[:1])]
    outputs.append(_emission(1, emitted[1:], supports and supports[1:], finish_reason="length"))
    verifications = [_verification(0, [], [3], 0), _verification(1, [5, 9, 12], [5, 9, 6], 1)]
    return RunHistory(
        id=name,
        run=_run(name, tp),
        workload=_workload(),
        outputs=histories.stream(f"runs/{name}/outputs.jsonl", outputs),
        steps=histories.stream(f"runs/{name}/steps.jsonl", [_step(0), _step(1)]),
        ranks={
            rank: histories.stream(f"runs/{name}/ranks/rank{rank}.jsonl", verifications)
            for rank in range(tp)
        },
        engine=histories.engine(f"engine-{name}", tp=tp, masks=masks),
    )


def _row(token: int, kept: tuple[int, ...]) -> evidence.Row:
    return rows.row(token, dict(zip(kept, (HALF, QUARTER, QUARTER), strict=True)))


def _emission(
    step: int,
    emitted: list[evidence.Row],
    supports: list[list[int]] | None,
    finish_reason: str | None = None,
) -> evidence.Emission:
    return evidence.Emission(
        step=step,
        request="a",
        first=step,
        rows=emitted,
        supports=supports,
        finish_reason=finish_reason,
    )


def _verification(
    step: int, drafts: list[int], sampled: list[int], rejected: int
) -> evidence.RankRecord:
    verified = evidence.Verified(
        request="a", draft_token_ids=drafts, sampled_token_ids=sampled, rejected=rejected
    )
    return evidence.Verification(step=step, requests=[verified])


def _step(step: int) -> evidence.Step:
    return evidence.Step(
        step=step,
        start_ns=step * 10,
        end_ns=step * 10 + 9,
        running=1,
        waiting=0,
        preempted=0,
        drafts=1 if step else None,
        draft_tokens=3 if step else None,
        accepted_tokens=2 if step else None,
        accepted_per_position=[1, 1, 0] if step else None,
    )


def _run(name: str, tp: int) -> evidence.Run:
    return evidence.Run(
        id=name,
        engine=f"engine-{name}",
        test="suites/test_correctness.py::test_outputs[tp1]",
        recorders=["verification"],
        faults=[],
        started="2026-12-01T08:00:10.000000Z",
        elapsed_s=0.1,
        complete=True,
        rank_streams=tp,
    )


def _workload() -> evidence.Workload:
    sampling = evidence.Sampling(temperature=1.0, max_tokens=4, seed=7, top_k=TOP_K, logprobs=-1)
    request = evidence.Request(id="a", prompt_token_ids=[1, 2], arrival_step=0, sampling=sampling)
    return evidence.Workload(profile="smoke", seed=0, vocab_size=VOCAB_SIZE, requests=[request])


OFF, ON = literal("off", masks=False), literal("on", masks=True)
TP1, TP2 = literal("tp1", masks=True), literal("tp2", masks=True, tp=2)


# --- one violation each -------------------------------------------------------------------------


def wider(row: evidence.Row, *, tie: bool) -> evidence.Row:
    """A row of four finite tokens where three are allowed; tied at the edge or not."""
    last = (0.2, 0.2) if tie else (0.25, 0.15)
    kept = [token for token in (*range(12, 16), *range(12)) if token != row.token_id][:3]
    probabilities = (0.4, 0.2, *last)
    logprobs = map(math.log, probabilities)
    return rows.row(row.token_id, dict(zip([row.token_id, *kept], logprobs, strict=True)))


def _masks(violating: RunHistory, clean: RunHistory = ON) -> Example:
    claim = histories.claim("masks", {"on": "on"})
    return Example(claim, {"on": clean}, {"on": violating})


def _outputs(violating: RunHistory) -> Example:
    claim = histories.claim("outputs", {"off": "off", "on": "on"})
    return Example(claim, {"off": OFF, "on": ON}, {"off": OFF, "on": violating})


def _engine(change: Callable[[list[evidence.EngineEvent]], list[evidence.EngineEvent]]) -> Example:
    return _engine_run(with_events(ON, change))


def _engine_run(violating: RunHistory) -> Example:
    claim = histories.claim("engine", {"on": "on"}, minima={"engines": 1})
    return Example(claim, {"on": ON}, {"on": violating})


def with_events(
    run: RunHistory, change: Callable[[list[evidence.EngineEvent]], list[evidence.EngineEvent]]
) -> RunHistory:
    """The run of an engine to which other things happened."""
    engine = run.engine
    assert engine is not None
    assert engine.events is not None
    events = replace(engine.events, records=tuple(change(list(engine.events.records))))
    return replace(run, engine=replace(engine, events=events))


def before_stop(
    *events: evidence.EngineEvent,
) -> Callable[[list[evidence.EngineEvent]], list[evidence.EngineEvent]]:
    """These events between `ready` and `stopped`."""
    return lambda old: [*old[:2], *events, *old[2:]]


def with_width(*, tie: bool) -> RunHistory:
    """The literal run with replay on, one support wider than top_k."""
    row = wider(edits.row_at(ON, "a", 2), tie=tie)
    assert row.finite is not None
    run = edits.edit_row(ON, "a", 2, finite=row.finite, logprob=row.logprob, rank=row.rank)
    return edits.edit_support(run, "a", 2, sorted(row.finite.token_ids))


def _halved(finite: evidence.Finite) -> evidence.Finite:
    return msgspec.structs.replace(finite, logprobs=[QUARTER, *finite.logprobs[1:]])


def _refused() -> RunHistory:
    assert ON.outputs is not None
    refusal = evidence.Refusal(request="b", error="ValueError", message="top_k must be > 0")
    return replace(ON, outputs=replace(ON.outputs, records=(refusal, *ON.outputs.records)))


def _parity() -> Example:
    claim = histories.claim("parity", {"tp1": "tp1", "tp2": "tp2"})
    violating = edits.edit_row(TP2, "a", 1, token_id=9, rank=3)
    return Example(claim, {"tp1": TP1, "tp2": TP2}, {"tp1": TP1, "tp2": violating})


def _acceptance() -> Example:
    claim = histories.claim("acceptance", {"off": "off", "on": "on"})
    violating = edits.edit_call(ON, 0, 1, 0, rejected=2)
    return Example(claim, {"off": OFF, "on": ON}, {"off": OFF, "on": violating})


def struck(run: RunHistory) -> RunHistory:
    """The run, had a planted fault altered its row 2."""
    fault = evidence.Fault(name="mask-token-cut", event="struck", step=1, detail="token 9 cut")
    stream = run.ranks[0]
    return edits.with_rank(run, 0, replace(stream, records=(fault, *stream.records)))


def caught_claim() -> evidence.Claim:
    claim = histories.claim("caught", {"off": "off", "on": "on"}, anomalies=["mask.membership"])
    return msgspec.structs.replace(claim, judges=["masks", "outputs", "acceptance"])


def _caught(violating: RunHistory) -> Example:
    claim = caught_claim()
    clean = struck(edits.edit_support(ON, "a", 2, [4, 11]))
    return Example(claim, {"off": OFF, "on": clean}, {"off": OFF, "on": struck(violating)})


def _cost(violating: measured.Measured) -> Example:
    clean = measured.measured()
    return Example(clean.claim, clean.runs, violating.runs)


def gate_claim() -> evidence.Claim:
    """That an engine which offends is refused for its reason."""
    claim = histories.claim(
        "gate",
        {"offence": "offence", "allowed": "allowed"},
        minima={"refused": 1, "accepted": 1},
    )
    return msgspec.structs.replace(claim, refusal="adaptive verification")


def started(name: str, event: evidence.EventName, detail: str = "") -> RunHistory:
    """A run that never began, of whose engine is known whether it started."""
    run = literal(name, masks=True)
    assert run.engine is not None
    assert run.engine.events is not None
    told = [histories.event("launching", 1, ""), histories.event(event, 2, detail)]
    path = run.engine.events.path
    engine = replace(run.engine, events=histories.stream(path, told))
    return replace(run, outputs=None, steps=None, ranks={}, engine=engine)


REASON = "ValueError: disable adaptive verification"


def _gate(offence: RunHistory | None = None, allowed: RunHistory | None = None) -> Example:
    clean = {
        "offence": started("offence", "refused", REASON),
        "allowed": started("allowed", "ready"),
    }
    violating = {"offence": offence or clean["offence"], "allowed": allowed or clean["allowed"]}
    return Example(gate_claim(), clean, violating)


def _determinism() -> Example:
    """The same tokens in both runs, of a layer that is not."""
    claim = histories.claim(
        "determinism", {"1-first": "off", "1-second": "again"}, minima={"pairs": 1}
    )
    again = literal("again", masks=False)
    first, second = (with_digest(run, "00ff") for run in (OFF, again))
    return Example(
        claim,
        {"1-first": first, "1-second": second},
        {"1-first": first, "1-second": with_digest(again, "00fe")},
    )


def with_digest(run: RunHistory, digest: str) -> RunHistory:
    """The run, of which one stage is on record."""
    stage = evidence.StageDigest(
        step=0, stage="layer.0", ordinal=0, dtype="float32", shape=[1, 8], digest=digest
    )
    stream = run.ranks[0]
    return edits.with_rank(run, 0, replace(stream, records=(stage, *stream.records)))


EXAMPLES: Mapping[str, Example] = {
    "mask.absent": _masks(edits.edit_emission(ON, 1, supports=[[2, 5, 9], [4, 9, 11]])),
    "mask.row-alignment": _masks(edits.edit_support(ON, "a", 2, [2, 5, 9])),
    "mask.membership": _masks(edits.edit_support(ON, "a", 2, [4, 11])),
    "mask.support-alignment": _masks(edits.edit_support(ON, "a", 2, [4, 9])),
    "mask.normalization": _masks(edits.edit_finite(ON, "a", 2, _halved)),
    "mask.width": _masks(with_width(tie=False), clean=with_width(tie=True)),
    "output.tokens": _outputs(edits.edit_row(ON, "a", 1, token_id=9)),
    "output.logprobs": _outputs(
        edits.edit_finite(
            ON,
            "a",
            2,
            lambda finite: msgspec.structs.replace(
                finite, logprobs=[*finite.logprobs[:2], math.nextafter(QUARTER, 0)]
            ),
        )
    ),
    "output.ranks": _outputs(edits.edit_row(ON, "a", 1, rank=2)),
    "output.acceptance": _acceptance(),
    "output.tp-parity": _parity(),
    "engine.crash": _engine(before_stop(histories.event("crashed", 5, "exit code -9", pids=[101]))),
    "engine.hang": _engine(
        before_stop(
            histories.event("deadline", 5, "no step for 60 s"),
            histories.event("stacks", 6, "py-spy", pids=[100, 101], paths=["stacks/100.txt"]),
            histories.event("signalled", 7, "SIGKILL to the group"),
        )
    ),
    "engine.leak": _engine(
        before_stop(histories.event("remains", 5, "after SIGKILL", paths=["rpc/socket"]))
    ),
    "gpu.leak": _engine(
        before_stop(histories.event("leaked", 5, "GPU-1: 3.0 GiB in use 30 s later"))
    ),
    "engine.refusal": _engine_run(_refused()),
    "cost.record": _cost(measured.measured().edited("p003.a", measured.longer_step)),
    "cost.regression": _cost(measured.measured(slowness=measured.steady(loss=0.1))),
    "gate.missing": _gate(offence=started("offence", "ready")),
    "gate.wrong-reason": _gate(offence=started("offence", "refused", "ValueError: no such model")),
    "gate.over-refusal": _gate(allowed=started("allowed", "refused", REASON)),
    "determinism.stage": _determinism(),
    "fault.survived": _caught(ON),
    "fault.misnamed": _caught(edits.edit_support(ON, "a", 2, [4, 9])),
    **{
        name: Example(oracles.claim(), {"run": oracle_examples.CLEAN}, {"run": violating})
        for name, violating in oracle_examples.VIOLATING.items()
    },
    **{
        name: Example(collectives.claim(), {"on": collective_examples.CLEAN}, {"on": violating})
        for name, violating in collective_examples.VIOLATING.items()
    },
}
"""Anomaly -> its example; the tests hold this complete over the table."""
