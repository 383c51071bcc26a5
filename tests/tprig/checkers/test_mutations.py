"""Random sound histories pass; a random single change to one never does."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.fakes import histories
from tests.tprig.checkers import edits
from tprig.checkers.verdict import judge, worst
from tprig.evidence import Verdict, Verification
from tprig.history import RunHistory, Stream

R = TypeVar("R")
Mutation = Callable[[random.Random, RunHistory], RunHistory]
SEEDS = st.integers(0, 2**32 - 1)
SETTINGS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def judged(off: RunHistory, on: RunHistory, tp: int = 1) -> list[Verdict]:
    return judge(histories.plan(histories.claims(tp=tp)), {"off": off, "on": on})


def found(verdicts: list[Verdict]) -> dict[str, list[str]]:
    """Claim -> its anomalies, for the claims that failed."""
    return {v.claim: list(v.failures) for v in verdicts if v.verdict == "fail"}


@SETTINGS
@given(seed=SEEDS, tp=st.sampled_from([1, 2]), late=st.booleans())
def test_sound_histories_pass(seed: int, tp: int, *, late: bool) -> None:
    off, on = histories.pair(seed, requests=3, tp=tp, async_scheduling=late)
    assert [v.reason for v in judged(off, on, tp) if v.verdict != "pass"] == []


@SETTINGS
@given(seed=SEEDS)
def test_sound_pairs_of_tp_sizes_pass(seed: int) -> None:
    tp1, tp2 = histories.tp_pair(seed, requests=3)
    claim = histories.claim("parity", {"tp1": "tp1", "tp2": "tp2"})
    (verdict,) = judge(histories.plan([claim]), {"tp1": tp1, "tp2": tp2})
    assert (verdict.verdict, verdict.failures) == ("pass", {})


# --- single changes to the run with replay --------------------------------------------------------


def another_token(rng: random.Random, run: RunHistory) -> RunHistory:
    """A token becomes another member of its support, with that token's logprob and rank."""
    request, position = rng.choice(edits.places(run))
    row, support = edits.row_at(run, request, position), edits.support_at(run, request, position)
    token = rng.choice([other for other in support if other != row.token_id])
    return edits.edit_row(run, request, position, token_id=token)


def support_less(rng: random.Random, run: RunHistory) -> RunHistory:
    request, position = rng.choice(_known(run))
    support = list(edits.support_at(run, request, position))
    token = edits.row_at(run, request, position).token_id
    support.remove(rng.choice([other for other in support if other != token]))
    return edits.edit_support(run, request, position, support)


def support_more(rng: random.Random, run: RunHistory) -> RunHistory:
    request, position = rng.choice(_known(run))
    support = edits.support_at(run, request, position)
    token = rng.choice([t for t in range(histories.VOCAB_SIZE) if t not in support])
    return edits.edit_support(run, request, position, sorted([*support, token]))


def _known(run: RunHistory) -> list[tuple[str, int]]:
    """Rows whose finite tokens are all known."""
    rows = [(place, edits.row_at(run, *place)) for place in edits.places(run)]
    known = [place for place, row in rows if row.finite is not None and row.finite.complete]
    assume(known)
    return known


def support_of_neighbour(rng: random.Random, run: RunHistory) -> RunHistory:
    known = _known(run)
    pairs = [(r, p) for r, p in known if (r, p + 1) in known]
    assume(pairs)
    request, position = rng.choice(pairs)
    neighbour = edits.support_at(run, request, position + 1)
    return edits.edit_support(run, request, position, neighbour)


def token_cut(rng: random.Random, run: RunHistory) -> RunHistory:
    request, position = rng.choice(edits.places(run))
    token = edits.row_at(run, request, position).token_id
    support = [t for t in edits.support_at(run, request, position) if t != token]
    return edits.edit_support(run, request, position, support)


def support_lost(rng: random.Random, run: RunHistory) -> RunHistory:
    index, emission = rng.choice(edits.emissions(run))
    assert emission.supports is not None
    return edits.edit_emission(run, index, supports=emission.supports[1:])


def selected_ulp(rng: random.Random, run: RunHistory) -> RunHistory:
    request, position = rng.choice(edits.places(run))
    logprob = edits.row_at(run, request, position).logprob
    assert isinstance(logprob, float)
    return edits.edit_row(run, request, position, logprob=_ulp(rng, logprob))


def finite_ulp(rng: random.Random, run: RunHistory) -> RunHistory:
    request, position = rng.choice(edits.places(run))
    finite = edits.row_at(run, request, position).finite
    assert finite is not None
    logprobs = list(finite.logprobs)
    index = rng.randrange(len(logprobs))
    logprobs[index] = _ulp(rng, float(logprobs[index]))
    changed = msgspec.structs.replace(finite, logprobs=logprobs)
    return edits.edit_row(run, request, position, finite=changed)


def _ulp(rng: random.Random, value: float) -> float:
    return float(np.nextafter(np.float32(value), np.float32(rng.choice([-np.inf, np.inf]))))


def rank_off(rng: random.Random, run: RunHistory) -> RunHistory:
    request, position = rng.choice(edits.places(run))
    rank = edits.row_at(run, request, position).rank
    assert rank is not None
    return edits.edit_row(run, request, position, rank=rank + rng.choice([-1, 1]))


def row_dropped(rng: random.Random, run: RunHistory) -> RunHistory:
    return edits.drop_row(run, *rng.choice(edits.places(run)))


def finish_changed(rng: random.Random, run: RunHistory) -> RunHistory:
    ends = [(i, e) for i, e in edits.emissions(run) if e.finish_reason is not None]
    index, _ = rng.choice(ends)
    return edits.edit_emission(run, index, finish_reason="abort")


def draft_changed(rng: random.Random, run: RunHistory) -> RunHistory:
    rank, record, request, drafts, _ = _verified(rng, run)
    index = rng.randrange(len(drafts))
    drafts[index] = rng.choice([t for t in range(histories.VOCAB_SIZE) if t != drafts[index]])
    return edits.edit_call(run, rank, record, request, draft_token_ids=drafts)


def sampled_changed(rng: random.Random, run: RunHistory) -> RunHistory:
    rank, record, request, _, sampled = _verified(rng, run)
    index = rng.randrange(len(sampled))
    sampled[index] = rng.choice([t for t in range(histories.VOCAB_SIZE) if t != sampled[index]])
    return edits.edit_call(run, rank, record, request, sampled_token_ids=sampled)


def sampled_fewer(rng: random.Random, run: RunHistory) -> RunHistory:
    rank, record, request, _, sampled = _verified(rng, run)
    return edits.edit_call(run, rank, record, request, sampled_token_ids=sampled[:-1])


def rejected_changed(rng: random.Random, run: RunHistory) -> RunHistory:
    rank, record, request, drafts, sampled = _verified(rng, run)
    rejected = len(drafts) + 1 - len(sampled)
    changed = rejected + rng.choice([-1, 1] if rejected else [1])
    return edits.edit_call(run, rank, record, request, rejected=changed)


def _verified(rng: random.Random, run: RunHistory) -> tuple[int, int, int, list[int], list[int]]:
    """A random call with drafts: rank, record, request, and copies of its drafts and samples."""
    calls = [
        (rank, i, j, list(verified.draft_token_ids), list(verified.sampled_token_ids))
        for rank, stream in run.ranks.items()
        for i, record in enumerate(stream.records)
        if isinstance(record, Verification)
        for j, verified in enumerate(record.requests)
        if verified.draft_token_ids and verified.sampled_token_ids
    ]
    return rng.choice(calls)


def counter_changed(rng: random.Random, run: RunHistory) -> RunHistory:
    assert run.steps is not None
    name = rng.choice(["drafts", "draft_tokens", "accepted_tokens"])
    counts = [(i, getattr(step, name)) for i, step in enumerate(run.steps.records)]
    index, count = rng.choice([(i, n) for i, n in counts if n is not None])
    return edits.edit_step(run, index, **{name: count + rng.choice([-1, 1] if count else [1])})


CAUGHT: Mapping[Mutation, Mapping[str, str]] = {
    another_token: {"outputs": "output.tokens", "acceptance": "output.acceptance"},
    support_less: {"masks": "mask.support-alignment"},
    support_more: {"masks": "mask.support-alignment"},
    support_of_neighbour: {"masks": "mask.row-alignment"},
    token_cut: {"masks": "mask.membership"},
    support_lost: {"masks": "mask.absent"},
    selected_ulp: {"outputs": "output.logprobs"},
    finite_ulp: {"outputs": "output.logprobs"},
    rank_off: {"outputs": "output.ranks"},
    row_dropped: {"outputs": "output.tokens"},
    finish_changed: {"outputs": "output.tokens"},
    draft_changed: {"acceptance": "output.acceptance"},
    sampled_changed: {"acceptance": "output.acceptance"},
    sampled_fewer: {"acceptance": "output.acceptance"},
    rejected_changed: {"acceptance": "output.acceptance"},
    counter_changed: {"acceptance": "output.acceptance"},
}
"""Mutation -> the anomaly that each claim must name."""


@pytest.mark.parametrize("mutate", CAUGHT, ids=lambda mutate: mutate.__name__)
@SETTINGS
@given(seed=SEEDS, tp=st.sampled_from([1, 2]), late=st.booleans())
def test_a_single_change_is_named(mutate: Mutation, seed: int, tp: int, *, late: bool) -> None:
    off, on = histories.pair(seed, requests=3, tp=tp, async_scheduling=late)
    verdicts = judged(off, mutate(random.Random(seed), on), tp)
    failed = found(verdicts)
    for checker, anomaly in CAUGHT[mutate].items():
        assert anomaly in failed.get(f"{checker}/tp{tp}", []), [v.reason for v in verdicts]
    assert worst(verdicts) == "fail"


@pytest.mark.parametrize("mutate", [support_less, support_more, support_of_neighbour, token_cut])
@SETTINGS
@given(seed=SEEDS)
def test_a_change_to_one_support_is_one_finding(mutate: Mutation, seed: int) -> None:
    off, on = histories.pair(seed, requests=3)
    verdicts = judged(off, mutate(random.Random(seed), on))
    assert found(verdicts) == {"masks/tp1": [CAUGHT[mutate]["masks"]]}
    assert sum(verdicts[0].failures.values()) == 1


@SETTINGS
@given(seed=SEEDS, stream=st.sampled_from(["outputs", "steps", "rank0", "rank1"]))
def test_a_cut_stream_is_unknown_and_never_a_failure(seed: int, stream: str) -> None:
    off, on = histories.pair(seed, requests=3, tp=2)
    on = _cut(random.Random(seed), on, stream)
    verdicts = judged(off, on, 2)
    assert found(verdicts) == {}
    assert worst(verdicts) == "unknown"


def _cut(rng: random.Random, run: RunHistory, stream: str) -> RunHistory:
    def shorter(whole: Stream[R] | None) -> Stream[R]:
        assert whole is not None
        return edits.truncated(whole, rng.randint(0, len(whole.records)))

    if stream == "outputs":
        return replace(run, outputs=shorter(run.outputs))
    if stream == "steps":
        return replace(run, steps=shorter(run.steps))
    rank = int(stream.removeprefix("rank"))
    return edits.with_rank(run, rank, shorter(run.ranks[rank]))
