"""Sound results pass; a single change to one of them, or to its call, is named for what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.tprig.checkers.reference.drawn import Wishes, draw
from tests.tprig.checkers.reference.small import call, request
from tests.tprig.checkers.reference.sound import sound_result
from tests.tprig.checkers.reference.strategies import calls
from tprig.checkers.reference import (
    Judgement,
    SamplerCall,
    SamplerResult,
    Subject,
    Verification,
    judge_call,
)

FEATURES = frozenset({"top_k", "top_p", "penalties", "replay", "short"})
CALLS = [
    draw(Wishes(seed=seed, requests=8, steps=3, vocab_size=60, drafts=drafts, features=FEATURES,
                verification=verification, temperature=temperature)).call
    for seed, (drafts, verification, temperature) in enumerate([
        ("near", Verification.STANDARD, "plain"), ("greedy", Verification.STANDARD, "mixed"),
        ("near", Verification.BLOCK, "plain"), ("far", Verification.STANDARD, "plain"),
        ("greedy", Verification.BLOCK, "plain"),
    ])
]  # fmt: skip
PAIRS = [(each, sound_result(each)) for each in CALLS]
Change = Callable[[np.random.Generator, SamplerCall, SamplerResult], SamplerResult]


def subjects(judgement: Judgement) -> set[Subject]:
    return {failure.what for failure in judgement.failures}


@settings(
    max_examples=60, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(wishes=calls(requests=4, steps=3, vocab_size=200))
def test_sound_results_pass(wishes: Wishes) -> None:
    """The judge leaves nothing open of what the reference itself decided."""
    made = draw(wishes).call
    judgement = judge_call(made, sound_result(made))
    assert judgement.failures == ()
    assert judgement.judged[Subject.COUNTS] == made.num_requests


def emitting(rng: np.random.Generator, made: SamplerCall, result: SamplerResult) -> tuple[int, int]:
    """A request that emits something, and one of its steps that does."""
    index = int(rng.choice(np.flatnonzero(result.num_sampled)))
    return index, int(rng.integers(result.num_sampled[index]))


def row(made: SamplerCall, index: int, step: int) -> int:
    return int(made.cu_num_logits[index]) + step


def changed(array: Any, place: Any, value: Any) -> Any:  # noqa: ANN401 - any array, any element
    copy = array.copy()
    copy[place] = value
    return copy


def another_successor(
    rng: np.random.Generator, made: SamplerCall, result: SamplerResult
) -> SamplerResult:
    index, _ = emitting(rng, made, result)
    place = (index, int(result.num_sampled[index]) - 1)
    token = (int(result.sampled[place]) + 1) % made.vocab_size
    return replace(result, sampled=changed(result.sampled, place, token))


def another_accepted_token(
    rng: np.random.Generator, made: SamplerCall, result: SamplerResult
) -> SamplerResult:
    index = int(rng.choice(np.flatnonzero(result.num_sampled > 1)))
    place = (index, int(rng.integers(result.num_sampled[index] - 1)))
    token = (int(result.sampled[place]) + 1) % made.vocab_size
    return replace(result, sampled=changed(result.sampled, place, token))


def one_more_rejected(
    rng: np.random.Generator, made: SamplerCall, result: SamplerResult
) -> SamplerResult:
    index, _ = emitting(rng, made, result)
    more = result.num_rejected[index] + 1
    return replace(result, num_rejected=changed(result.num_rejected, index, more))


def one_less_accepted(
    rng: np.random.Generator, made: SamplerCall, result: SamplerResult
) -> SamplerResult:
    """Consistently: the last draft that was accepted is refused."""
    index = int(rng.choice(np.flatnonzero(result.num_sampled > 1)))
    return replace(
        result,
        num_sampled=changed(result.num_sampled, index, result.num_sampled[index] - 1),
        num_rejected=changed(result.num_rejected, index, result.num_rejected[index] + 1),
    )


def another_logprob(
    rng: np.random.Generator, made: SamplerCall, result: SamplerResult
) -> SamplerResult:
    at = row(made, *emitting(rng, made, result))
    assert result.logprobs is not None
    return replace(
        result, logprobs=changed(result.logprobs, (at, 0), result.logprobs[at, 0] + 1e-3)
    )


def another_rank(
    rng: np.random.Generator, made: SamplerCall, result: SamplerResult
) -> SamplerResult:
    at = row(made, *emitting(rng, made, result))
    assert result.ranks is not None
    return replace(result, ranks=changed(result.ranks, at, result.ranks[at] + 1))


def a_logprob_too_few(
    rng: np.random.Generator, made: SamplerCall, result: SamplerResult
) -> SamplerResult:
    assert result.logprobs is not None
    assert result.logprob_token_ids is not None
    return replace(
        result,
        logprobs=result.logprobs[:, :-1],
        logprob_token_ids=result.logprob_token_ids[:, :-1],
    )


def another_best_token(
    rng: np.random.Generator, made: SamplerCall, result: SamplerResult
) -> SamplerResult:
    """With its own logprob, but in the place of the best one."""
    ids, logprobs = result.logprob_token_ids, result.logprobs
    assert ids is not None
    assert logprobs is not None
    at = row(made, *emitting(rng, made, result))
    worst = int(np.argmin(made.logits[at]))
    return replace(
        result,
        logprob_token_ids=changed(ids, (at, 1), worst),
        logprobs=changed(logprobs, (at, 1), -np.inf),
    )


def another_processed_logit(
    rng: np.random.Generator, made: SamplerCall, result: SamplerResult
) -> SamplerResult:
    logits = result.processed_logits
    assert logits is not None
    at = int(rng.integers(len(logits)))
    token = int(rng.choice(np.flatnonzero(np.isfinite(logits[at]))))
    return replace(
        result, processed_logits=changed(logits, (at, token), logits[at, token] * 1.01 + 1e-3)
    )


def a_masked_logit(
    rng: np.random.Generator, made: SamplerCall, result: SamplerResult
) -> SamplerResult:
    logits = result.processed_logits
    assert logits is not None
    at = int(rng.integers(len(logits)))
    token = int(np.argmax(logits[at]))
    return replace(result, processed_logits=changed(logits, (at, token), -np.inf))


def another_support(
    rng: np.random.Generator, made: SamplerCall, result: SamplerResult
) -> SamplerResult:
    assert result.supports is not None
    index, step = emitting(rng, made, result)
    supports = [list(each) for each in result.supports]
    outside = np.setdiff1d(np.arange(made.vocab_size), supports[index][step])
    supports[index][step] = (
        supports[index][step][1:] if not len(outside) or rng.random() < 0.5
        else np.append(supports[index][step], rng.choice(outside))
    )  # fmt: skip
    return replace(result, supports=tuple(map(tuple, supports)))


def a_support_too_few(
    rng: np.random.Generator, made: SamplerCall, result: SamplerResult
) -> SamplerResult:
    assert result.supports is not None
    index, _ = emitting(rng, made, result)
    supports = list(result.supports)
    supports[index] = supports[index][:-1]
    return replace(result, supports=tuple(supports))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (another_successor, Subject.TOKENS),
        (another_accepted_token, Subject.DECISIONS),
        (one_more_rejected, Subject.COUNTS),
        (one_less_accepted, Subject.DECISIONS),
        (another_logprob, Subject.LOGPROBS),
        (another_rank, Subject.RANKS),
        (a_logprob_too_few, Subject.LOGPROBS),
        (another_best_token, Subject.LOGPROBS),
        (another_processed_logit, Subject.PROCESSED),
        (a_masked_logit, Subject.PROCESSED),
        (another_support, Subject.SUPPORT),
        (a_support_too_few, Subject.SUPPORT),
    ],
)
def test_a_changed_result_is_named(change: Change, named: Subject) -> None:
    """In 20 of 20 places."""
    rng = np.random.default_rng(0)
    for attempt in range(20):
        made, result = PAIRS[attempt % len(PAIRS)]
        judgement = judge_call(made, change(rng, made, result))
        assert named in subjects(judgement), f"attempt {attempt}: {judgement.failures}"


def test_a_changed_logit_shows_in_the_processed_ones() -> None:
    rng = np.random.default_rng(1)
    for attempt in range(20):
        made, result = PAIRS[attempt % len(PAIRS)]
        assert result.processed_logits is not None
        finite = np.argwhere(np.isfinite(result.processed_logits))
        at, token = finite[rng.integers(len(finite))]
        logits = changed(made.logits, (at, token), made.logits[at, token] + np.float32(0.01))
        assert Subject.PROCESSED in subjects(judge_call(replace(made, logits=logits), result))


def test_ambiguous_ties_are_no_failures_and_show_in_the_counts() -> None:
    """Two logits one float32 step apart after a division: either may be the largest."""
    one = np.float32(3.0)
    logits = [[float(one), float(np.nextafter(one, np.float32(9.0))), 0.0, 0.0]]
    made = call(logits * 2, [request(temperature=0.7), request(temperature=0.0)], [(), ()])
    made = replace(made, requests=(replace(made.requests[0], top_k=1), made.requests[1]))
    result = replace(sound_result(made), processed_logits=None)
    blind = replace(result, logprob_token_ids=None, logprobs=None, ranks=None)
    for token, fails in ((0, False), (1, False), (2, True)):
        judgement = judge_call(made, replace(blind, sampled=changed(blind.sampled, (0, 0), token)))
        assert judgement.ambiguous[Subject.TOKENS] == 1
        assert subjects(judgement) == ({Subject.TOKENS} if fails else set())


def test_prefill_emits_nothing() -> None:
    early = call([[0.0] * 4], [request(prefill_len=20)], [()])
    result = sound_result(early)
    assert (result.num_sampled.tolist(), result.num_rejected.tolist()) == ([0], [0])
    assert judge_call(early, result).discrepancies == ()
    counted = replace(result, num_sampled=np.array([1]))
    (failure,) = judge_call(early, counted).failures
    assert (failure.what, failure.found) == (Subject.COUNTS, "1 sampled and 0 rejected")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"logits": np.array([[0.0, np.nan, 1.0, 2.0]], dtype=np.float32)}, "NaN or inf"),
        ({"logits": np.array([[0.0, np.inf, 1.0, 2.0]], dtype=np.float32)}, "NaN or inf"),
        ({"logits": np.array([[0.0, 3e38, 1.0, 2.0]], dtype=np.float32)}, "exceed float32"),
        ({"unmodelled": ("thinking budget",)}, "not modelled: thinking budget"),
    ],
)
def test_what_cannot_be_judged_is_said_and_not_passed(fields: dict[str, Any], reason: str) -> None:
    made = call([[0.0] * 4], [request(temperature=0.5)], [()])
    judgement = judge_call(replace(made, **fields), sound_result(made))
    (undecided,) = judgement.undecided
    assert reason in undecided
    assert judgement.judged.get(Subject.TOKENS, 0) == 0
