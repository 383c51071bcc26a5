"""Builders of literal histories: what a sound engine would have left behind, made up from a seed.

`pair` is one workload with replay off and on; `tp_pair` is one workload at TP1 and TP2. They obey
every rule that the checkers know, and are as varied as real ones: chunked prefill, preemption with
placeholder drafts, verifications cut by `max_tokens` and stop tokens, ties at the top-k edge, rows
whose finite set is only known in part.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from tests.fakes import rows
from tests.fakes.ranks import Rank
from tprig import evidence
from tprig.history import EngineHistory, RunHistory, Stream

R = TypeVar("R")

VOCAB_SIZE = rows.VOCAB_SIZE
SPECULATIVE_TOKENS = 3
VLLM_VERSION = "0.32.0"
SEAMS = ("model_runner.execute_model", "model_runner.sample")


@dataclass(frozen=True)
class Turn:
    """One request's part in one step: a prefill chunk samples nothing."""

    drafts: list[int] = field(default_factory=list)
    rows: list[evidence.Row] = field(default_factory=list)
    supports: list[list[int]] = field(default_factory=list)
    emitted: int = 0
    """How many of the rows were emitted."""
    counted: bool = True
    """False when the request had finished before."""
    finish_reason: str | None = None
    stop_reason: int | None = None

    @property
    def rejected(self) -> int:
        return len(self.drafts) + 1 - len(self.rows) if self.rows else 0


@dataclass(frozen=True)
class Script:
    """One request and what becomes of it, step by step from its arrival."""

    request: evidence.Request
    turns: list[Turn]


# --- public builders ------------------------------------------------------------------------------


def pair(
    seed: int,
    *,
    requests: int = 4,
    tp: int = 1,
    max_tokens: tuple[int, int] = (6, 16),
    refused: int = 0,
    async_scheduling: bool = False,
) -> tuple[RunHistory, RunHistory]:
    """The same workload with replay off and on: runs `off` and `on`, without a fault.

    Args:
        seed: equal seeds give equal histories.
        requests: how many are served.
        tp: tensor-parallel size, which is the number of rank streams.
        max_tokens: bounds of the requests' `max_tokens`.
        refused: how many further requests vLLM refuses.
        async_scheduling: whether a call may be in flight when its request finishes.
    """
    rng = random.Random(seed)
    scripts = [_script(rng, f"r{i}", max_tokens, late=async_scheduling) for i in range(requests)]
    runs = [
        _history(name, scripts, tp=tp, masks=name == "on", refused=refused, late=async_scheduling)
        for name in ("off", "on")
    ]
    return runs[0], runs[1]


def tp_pair(
    seed: int, *, requests: int = 4, nudge: float = 2e-6, dtype: str = "torch.float32"
) -> tuple[RunHistory, RunHistory]:
    """The same workload at TP1 and TP2: runs `tp1` and `tp2`, logprobs apart by at most `nudge`."""
    rng = random.Random(seed)
    scripts = [_script(rng, f"r{i}", (6, 16), late=False) for i in range(requests)]
    tp1 = _history("tp1", scripts, tp=1, masks=True, dtype=dtype)
    scripts = [
        replace(
            s,
            turns=[replace(t, rows=[rows.nudged(rng, r, nudge) for r in t.rows]) for t in s.turns],
        )
        for s in scripts
    ]
    return tp1, _history("tp2", scripts, tp=2, masks=True, dtype=dtype)


def claims(*, tp: int = 1) -> list[evidence.Claim]:
    """The claims that `pair` decides."""
    off_on = {"off": "off", "on": "on"}
    return [
        claim("masks", {"on": "on"}, tp=tp),
        claim("outputs", off_on, tp=tp),
        claim("acceptance", off_on, tp=tp),
        claim("engine", off_on, tp=tp, minima={"engines": 2}),
    ]


def claim(
    checker: str,
    runs: Mapping[str, str],
    *,
    tp: int = 1,
    anomalies: Sequence[str] = (),
    minima: Mapping[str, int] | None = None,
    requirement: evidence.Requirement = "required",
    reason: str | None = None,
    boundary: Mapping[str, str] | None = None,
) -> evidence.Claim:
    """A claim `<checker>/tp<n>` on the given runs."""
    return evidence.Claim(
        id=f"{checker}/tp{tp}",
        test=f"suites/test_correctness.py::test_{checker}[tp{tp}]",
        checker=checker,
        anomalies=list(anomalies),
        runs=dict(runs),
        tensor_parallel_size=tp,
        requirement=requirement,
        reason=reason,
        minima=dict(minima) if minima is not None else {"rows": 1},
        boundary=dict(boundary or {}),
    )


def plan(
    claims: Iterable[evidence.Claim], known_issues: Iterable[evidence.KnownIssue] = ()
) -> evidence.Plan:
    """A plan of these claims."""
    claims = list(claims)
    return evidence.Plan(
        version=evidence.SCHEMA_VERSION,
        created="2026-12-01T08:00:00.000000Z",
        command=["pytest", "-m", "tp1"],
        seed=0,
        profile="smoke",
        platform="cpu",
        tests=sorted({claim.test for claim in claims}),
        claims=claims,
        known_issues=list(known_issues),
    )


# --- scripts ----------------------------------------------------------------------------------


def _script(rng: random.Random, name: str, max_tokens: tuple[int, int], *, late: bool) -> Script:
    limit, top_k = rng.randint(*max_tokens), rng.randint(8, 40)
    shown = 5 if rng.random() < 0.2 else None
    turns = [Turn() for _ in range(rng.choice([0, 0, 1, 2]))]
    turns.append(_turn(rng, top_k, shown, drafts=0))
    while sum(len(turn.rows) for turn in turns) < limit:
        if rng.random() < 0.08:
            turns += [Turn(), _turn(rng, top_k, shown, drafts=SPECULATIVE_TOKENS, valid=False)]
        drafts = SPECULATIVE_TOKENS if rng.random() < 0.9 else rng.randint(0, 2)
        turns.append(_turn(rng, top_k, shown, drafts=drafts))
    stop = _stop_row(rng, [row.token_id for turn in turns for row in turn.rows][:limit])
    turns, stop_token_ids = _cut(turns, limit, stop)
    if late and rng.random() < 0.7:
        turn = _turn(rng, top_k, shown, drafts=SPECULATIVE_TOKENS)
        turns.append(replace(turn, counted=False, emitted=0))
    request = evidence.Request(
        id=name,
        prompt_token_ids=[rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 30))],
        arrival_step=rng.choice([0, 0, 2, 5]),
        sampling=evidence.Sampling(
            temperature=rng.choice([0.7, 1.0, 1.3]),
            max_tokens=limit,
            seed=rng.randrange(2**31),
            top_k=top_k,
            stop_token_ids=stop_token_ids,
            logprobs=-1 if shown is None else shown,
        ),
    )
    return Script(request, turns)


def _turn(
    rng: random.Random, top_k: int, shown: int | None, *, drafts: int, valid: bool = True
) -> Turn:
    """A sampling call: each draft is accepted with a falling chance, then one token more."""
    accepted = 0
    while valid and accepted < drafts and rng.random() < 0.7 - 0.15 * accepted:
        accepted += 1
    dists = [rows.distribution(rng, top_k) for _ in range(accepted + 1)]
    tokens = [rng.choice(list(dist)) for dist in dists]
    proposed = tokens[:accepted] + [
        rng.choice([t for t in range(VOCAB_SIZE) if t != tokens[accepted]])
        for _ in range(drafts - accepted)
    ]
    return Turn(
        drafts=proposed if valid else [-1] * drafts,
        rows=[
            rows.row(t, dist, complete=shown is None or shown > len(dist), shown=shown)
            for t, dist in zip(tokens, dists, strict=True)
        ],
        supports=[sorted(dist) for dist in dists],
        emitted=accepted + 1,
    )


def _stop_row(rng: random.Random, tokens: Sequence[int]) -> int | None:
    """A row whose token may be a stop token: it did not come before."""
    index = rng.randrange(2, len(tokens))
    return index if rng.random() < 0.3 and tokens[index] not in tokens[:index] else None


def _cut(turns: list[Turn], limit: int, stop: int | None) -> tuple[list[Turn], list[int]]:
    """End the output after `limit` rows, or after the stop row; what was sampled stays."""
    length = limit if stop is None else stop + 1
    emitted, kept = 0, []
    for turn in turns:
        count = min(turn.emitted, length - emitted)
        emitted += count
        kept.append(replace(turn, emitted=count))
        if emitted == length:
            break
    last = kept[-1]
    token = last.rows[last.emitted - 1].token_id
    reason: tuple[str, int | None] = ("length", None) if stop is None else ("stop", token)
    kept[-1] = replace(last, finish_reason=reason[0], stop_reason=reason[1])
    return kept, [] if stop is None else [token]


# --- histories --------------------------------------------------------------------------------


def _history(
    name: str,
    scripts: Sequence[Script],
    *,
    tp: int,
    masks: bool,
    refused: int = 0,
    late: bool = False,
    dtype: str = "torch.float32",
) -> RunHistory:
    workload = evidence.Workload(
        profile="smoke",
        seed=0,
        vocab_size=VOCAB_SIZE,
        requests=[s.request for s in scripts] + [_refused(i) for i in range(refused)],
    )
    run = evidence.Run(
        id=name,
        engine=f"engine-{name}",
        test=f"suites/test_correctness.py::test_outputs[tp{tp}]",
        recorders=["verification"],
        faults=[],
        started="2026-12-01T08:00:10.000000Z",
        elapsed_s=1.5,
        complete=True,
        rank_streams=tp,
    )
    outputs, steps, verifications = _records(scripts, masks=masks)
    refusals = [
        evidence.Refusal(request=f"refused{i}", error="ValueError", message="top_k must be > 0")
        for i in range(refused)
    ]
    return RunHistory(
        id=name,
        run=run,
        workload=workload,
        outputs=stream(f"runs/{name}/outputs.jsonl", [*refusals, *outputs]),
        steps=stream(f"runs/{name}/steps.jsonl", steps),
        ranks={
            rank: stream(
                f"runs/{name}/ranks/rank{rank}.jsonl", [*verifications, *_collectives(rank, tp)]
            )
            for rank in range(tp)
        },
        core=_core(name) if tp > 1 else None,
        engine=engine(f"engine-{name}", tp=tp, masks=masks, late=late, dtype=dtype),
    )


def _core(name: str) -> Stream[evidence.CoreRecord]:
    """What the engine core sent: the step that the ranks took."""
    sent = evidence.Broadcast(number=0, method="execute_model", facts={"tokens": {"a": 4}})
    return stream(f"runs/{name}/core.jsonl", [sent])


def _collectives(rank: int, tp: int) -> list[evidence.RankRecord]:
    """A step without drafts of a model of two layers, where there is more than one rank."""
    if tp == 1:
        return []
    one = Rank(rank, range(tp)).step()
    for place in range(5):
        one.call(at=f"model.py:forward:{place}")
    one.call("all_gather", at="model.py:logits:9").flush()
    return one.records


def stream(path: str, records: Iterable[R]) -> Stream[R]:
    """A stream that was closed in order."""
    return Stream(path=path, records=tuple(records), complete=True)


def engine(
    name: str, *, tp: int = 1, masks: bool = True, late: bool = False, dtype: str = "torch.float32"
) -> EngineHistory:
    """An engine that started, served and went."""
    return EngineHistory(
        id=name,
        arm=_arm(tp=tp, masks=masks),
        effective=_effective(tp=tp, masks=masks, late=late, dtype=dtype),
        events=stream(
            f"engines/{name}/events.jsonl",
            [
                event("launching", 0, "host process started"),
                event("ready", 400_000_000, "ready"),
                event("stopped", 3_000_000_000, "exit code 0"),
                event("cleaned", 3_100_000_000, "nothing left"),
            ],
        ),
    )


def event(
    name: str, at_ns: int, detail: str, *, pids: Sequence[int] = (), paths: Sequence[str] = ()
) -> evidence.EngineEvent:
    """An event of an engine, by its name in the schema."""
    fields = {"event": name, "at_ns": at_ns, "detail": detail}
    return msgspec.convert(
        {"type": "engine", **fields, "pids": list(pids), "paths": list(paths)},
        evidence.EngineEvent,
    )


def _arm(*, tp: int, masks: bool) -> evidence.Arm:
    return evidence.Arm(
        python="/usr/bin/python3",
        tree=None,
        platform="cpu",
        tensor_parallel_size=tp,
        engine_args={"return_sampling_mask": msgspec.Raw(b"true" if masks else b"false")},
        environment={},
        model_digest="0" * 64,
        core_process=False,
    )


def _effective(*, tp: int, masks: bool, late: bool, dtype: str) -> evidence.Effective:
    return evidence.Effective(
        vllm_version=VLLM_VERSION,
        vllm_digest="1" * 64,
        vllm_path="/venv/vllm",
        versions={"torch": "2.13.0"},
        config={
            "model.dtype": dtype,
            "model.max_model_len": "1024",
            "model.return_sampling_mask": str(masks),
            "parallel.tensor_parallel_size": str(tp),
            "scheduler.async_scheduling": str(late),
        },
        pids={"host": 100, **{f"rank{rank}": 101 + rank for rank in range(tp)}},
        devices=["cpu"] * tp,
        seams=[seam(name) for name in SEAMS],
        vocab_size=VOCAB_SIZE,
    )


def seam(name: str, *, ok: bool = True) -> evidence.Seam:
    """A seam as expected, or with a parameter renamed."""
    found = "(self, scheduler_output)" if ok else "(self, output)"
    return evidence.Seam(
        name=name,
        target=f"vllm.v1.worker.gpu.model_runner:{name}",
        expected="(self, scheduler_output, ...)",
        found=found,
        ok=ok,
    )


def _refused(index: int) -> evidence.Request:
    sampling = evidence.Sampling(temperature=1.0, max_tokens=4, seed=1, top_k=0)
    return evidence.Request(
        id=f"refused{index}", prompt_token_ids=[1, 2], arrival_step=0, sampling=sampling
    )


def _records(
    scripts: Sequence[Script], *, masks: bool
) -> tuple[list[evidence.OutputRecord], list[evidence.Step], list[evidence.RankRecord]]:
    """Play the scripts: every request that has arrived takes a turn in every step."""
    outputs: list[evidence.OutputRecord] = []
    steps: list[evidence.Step] = []
    verifications: list[evidence.RankRecord] = []
    left = {script.request.id: list(script.turns) for script in scripts}
    emitted = dict.fromkeys(left, 0)
    arrivals = {script.request.id: script.request.arrival_step for script in scripts}
    running: list[str] = []
    while any(left.values()):
        now = len(steps)
        waiting = [name for name in left if name not in running]
        running += [name for name in waiting if arrivals[name] <= now]
        if not any(left[name] for name in running):
            running.append(min(waiting, key=arrivals.__getitem__))
        turns = {name: left[name].pop(0) for name in running if left[name]}
        for name, turn in turns.items():
            if turn.emitted:
                outputs.append(_emission(now, name, emitted[name], turn, masks=masks))
                emitted[name] += turn.emitted
        verifications.append(_verification(now, turns))
        steps.append(_step(now, list(turns.values())))
    return outputs, steps, verifications


def _emission(step: int, request: str, first: int, turn: Turn, *, masks: bool) -> evidence.Emission:
    return evidence.Emission(
        step=step,
        request=request,
        first=first,
        rows=turn.rows[: turn.emitted],
        supports=turn.supports[: turn.emitted] if masks else None,
        finish_reason=turn.finish_reason,
        stop_reason=turn.stop_reason,
    )


def _verification(step: int, turns: Mapping[str, Turn]) -> evidence.Verification:
    return evidence.Verification(
        step=step,
        requests=[
            evidence.Verified(
                request=name,
                draft_token_ids=turn.drafts,
                sampled_token_ids=[row.token_id for row in turn.rows],
                rejected=turn.rejected,
            )
            for name, turn in turns.items()
        ],
    )


def _step(step: int, turns: Sequence[Turn]) -> evidence.Step:
    """A step with vLLM's own counters; it gives none of a step that verified no draft."""
    verified = [turn for turn in turns if turn.counted and turn.drafts and turn.rows]
    accepted = [len(turn.rows) - 1 for turn in verified]
    by_position = [sum(n > position for n in accepted) for position in range(SPECULATIVE_TOKENS)]
    return evidence.Step(
        step=step,
        start_ns=step * 10_000_000,
        end_ns=step * 10_000_000 + 9_000_000,
        running=len(turns),
        waiting=0,
        preempted=0,
        drafts=len(verified) if verified else None,
        draft_tokens=sum(len(turn.drafts) for turn in verified) if verified else None,
        accepted_tokens=sum(accepted) if verified else None,
        accepted_per_position=by_position if verified else None,
    )
