"""vLLM's objects as records of the schema: nothing rounded, nothing made up."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tprig_inject import records
from tprig_inject.records import Statistics, number

from fixtures.workload import PROFILES, workload
from tests.tprig.inject.foreign.client import Foreign
from tprig import evidence

VOCAB_SIZE = 6
INF = math.inf


def emission(foreign: Foreign, **arguments: Any) -> evidence.Emission:
    record = foreign("outputs", "emission", **{"vocab_size": VOCAB_SIZE, **arguments})
    return msgspec.convert(record, evidence.Emission)


def row(token_ids: list[int], logprobs: list[float | str], rank: int = 1) -> dict[str, Any]:
    return {"token_ids": token_ids, "logprobs": [str(v) for v in logprobs], "rank": rank}


def only(emitted: evidence.Emission) -> evidence.Row:
    (found,) = emitted.rows
    return found


# --- numbers -----------------------------------------------------------------------------------


@given(st.floats())
def test_every_float_is_a_number_of_the_schema(value: float) -> None:
    text = msgspec.json.encode(number(value))
    back = msgspec.json.decode(text, type=evidence.Number)
    assert back == value if math.isfinite(value) else back == str(value)


def test_what_json_lacks_is_a_word() -> None:
    assert [number(v) for v in (INF, -INF, math.nan, 0.0)] == ["inf", "-inf", "nan", 0.0]


# --- emissions ---------------------------------------------------------------------------------


def test_an_emission_has_its_place_and_its_end(foreign: Foreign) -> None:
    emitted = emission(foreign, rows=None, token_ids=[4, 2], finish_reason="stop", stop_reason=2)
    empty = evidence.Row(token_id=4, logprob=None, rank=None, finite=None)
    assert emitted == evidence.Emission(
        step=3,
        request="a",
        first=7,
        rows=[empty, msgspec.structs.replace(empty, token_id=2)],
        supports=None,
        finish_reason="stop",
        stop_reason=2,
    )


def test_supports_are_the_mask_s(foreign: Foreign) -> None:
    emitted = emission(foreign, rows=None, token_ids=[4, 2], supports=[[1, 4], []])
    assert emitted.supports == [[1, 4], []]


def test_the_emitted_token_s_logprob_and_rank_come_first(foreign: Foreign) -> None:
    rows = [
        row([4, 1, 4], [-1.25, -0.5, -1.25], rank=2),
        row([2, 2, 3], [-0.25, -0.25, -2.0], rank=1),
    ]
    emitted = emission(foreign, rows=rows, token_ids=[4, 2])
    assert [(r.token_id, r.logprob, r.rank) for r in emitted.rows] == [(4, -1.25, 2), (2, -0.25, 1)]
    finite = emitted.rows[0].finite
    assert finite is not None
    assert (finite.token_ids, finite.logprobs) == ([1, 4], [-0.5, -1.25])


def test_logprobs_of_another_token_are_not_the_emitted_one_s(foreign: Foreign) -> None:
    emitted = emission(foreign, rows=[row([3, 1], [-1.0, -0.5])], token_ids=[4])
    assert only(emitted).logprob is None


def test_a_float32_is_kept_to_its_last_bit(foreign: Foreign) -> None:
    value = float.fromhex("-0x1.99999ap-1")
    emitted = emission(foreign, rows=[row([4, 4], [value, value])], token_ids=[4])
    assert only(emitted).logprob == value


COMPLETE = {
    "a -inf was returned, so all finite ones were": ([-0.5, -1.0, -INF], True),
    "all that was asked for is finite: there may be more": ([-0.5, -1.0, -2.0], False),
    "the vocabulary was returned": ([-0.5, -1.0, -2.0, -3.0, -4.0, -5.0], True),
    "the vocabulary was returned, some of it -inf": ([-0.5, -1.0, -INF, -INF, -INF, -INF], True),
    "nothing was asked for": ([], False),
    "nothing is finite": ([-INF, -INF], True),
}


@pytest.mark.parametrize(("logprobs", "complete"), COMPLETE.values(), ids=COMPLETE)
def test_the_finite_set_is_complete_when_nothing_can_be_missing(
    foreign: Foreign, logprobs: list[float], *, complete: bool
) -> None:
    top = list(range(len(logprobs)))
    first = logprobs[0] if logprobs else -0.5
    emitted = emission(foreign, rows=[row([0, *top], [first, *logprobs])], token_ids=[0])
    finite = only(emitted).finite
    assert finite is not None
    assert finite.logprobs == [v for v in logprobs if v != -INF]
    assert finite.token_ids == [t for t, v in enumerate(logprobs) if v != -INF]
    assert finite.complete is complete


def test_an_emitted_token_without_probability_is_told_as_it_is(foreign: Foreign) -> None:
    emitted = emission(foreign, rows=[row([4, 1], [-INF, 0.0], rank=6)], token_ids=[4])
    assert (only(emitted).logprob, only(emitted).rank) == ("-inf", 6)


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_what_no_logprob_may_be_is_kept_as_a_word(foreign: Foreign, value: str) -> None:
    """Dropping it, as a -inf is, would hide what a checker must see."""
    emitted = emission(foreign, rows=[row([1, 1, 2], [value, value, -INF])], token_ids=[1])
    finite = only(emitted).finite
    assert finite is not None
    assert (finite.token_ids, finite.logprobs) == ([1], [value])
    assert only(emitted).logprob == value


# --- sampling parameters -----------------------------------------------------------------------


def sampling(**fields: Any) -> evidence.Sampling:
    return evidence.Sampling(**{"temperature": 0.8, "max_tokens": 9, "seed": 3, **fields})


def params(foreign: Foreign, asked: evidence.Sampling) -> dict[str, Any]:
    return dict(foreign("outputs", "params", sampling=msgspec.to_builtins(asked)))


FULL = sampling(
    top_k=40,
    top_p=0.9,
    min_p=0.1,
    presence_penalty=0.4,
    frequency_penalty=0.2,
    repetition_penalty=1.1,
    min_tokens=2,
    stop_token_ids=[5, 6],
    allowed_token_ids=[5, 7],
    ignore_eos=False,
    logprobs=12,
)


@pytest.mark.parametrize("asked", [sampling(), FULL], ids=["least", "all"])
def test_every_field_reaches_vllm_under_its_own_name(
    foreign: Foreign, asked: evidence.Sampling
) -> None:
    made = params(foreign, asked)
    expected = msgspec.to_builtins(asked)
    apart = {"bad_words_token_ids", "logit_bias"}
    assert {name: made[name] for name in expected.keys() - apart} == {
        name: value for name, value in expected.items() if name not in apart
    }


def test_outputs_are_deltas_that_nothing_is_lost_of(foreign: Foreign) -> None:
    made = params(foreign, sampling())
    assert made["output_kind"] == "DELTA"
    assert (made["flat_logprobs"], made["detokenize"]) == (True, False)


def test_bad_words_are_given_as_tokens_and_biases_by_token(foreign: Foreign) -> None:
    made = params(
        foreign, sampling(bad_words_token_ids=[[4], [5, 6]], logit_bias={"7": -1.5, "8": 2.0})
    )
    assert made["bad_words_token_ids"] == [[4], [5, 6]]
    assert made["logit_bias"] == [[7, -1.5], [8, 2.0]]


@pytest.mark.parametrize("vocab_size", [8_219, 151_936, 64])
@pytest.mark.parametrize("profile", PROFILES)
def test_vllm_takes_every_request_of_every_profile(
    foreign: Foreign, profile: str, vocab_size: int
) -> None:
    requests = msgspec.to_builtins(workload(profile, 5, vocab_size).requests)
    assert foreign("outputs", "refusals", requests=requests, vocab_size=vocab_size) == {}


def test_vllm_s_own_checks_are_what_is_asked(foreign: Foreign) -> None:
    """They refuse what a workload may not hold."""
    bad = {
        "min-p": sampling(min_p=0.1),
        "bias": sampling(logit_bias={"7": 1.0}),
        "too many stop tokens": sampling(min_tokens=2, stop_token_ids=list(range(2, 140))),
        "too many bad words": sampling(bad_words_token_ids=[[t] for t in range(2, 140)]),
        "beyond the vocabulary": sampling(stop_token_ids=[200]),
        "no allowed token": sampling(allowed_token_ids=[]),
        "fine": sampling(top_k=5),
    }
    requests = [{"id": name, "sampling": msgspec.to_builtins(s)} for name, s in bad.items()]
    refused = foreign("outputs", "refusals", requests=requests, vocab_size=200)
    assert set(refused) == set(bad) - {"fine"}


# --- statistics --------------------------------------------------------------------------------


def step(statistics: Statistics) -> evidence.Step:
    return msgspec.convert(statistics.take(4, 10, 20), evidence.Step)


def test_without_vllm_s_statistics_nothing_is_known() -> None:
    assert step(Statistics()) == evidence.Step(
        step=4,
        start_ns=10,
        end_ns=20,
        running=None,
        waiting=None,
        preempted=None,
        drafts=None,
        draft_tokens=None,
        accepted_tokens=None,
        accepted_per_position=None,
    )


def test_counts_are_of_one_step_alone() -> None:
    statistics = Statistics()
    drafts = SimpleNamespace(
        num_drafts=2,
        num_draft_tokens=6,
        num_accepted_tokens=4,
        num_accepted_tokens_per_pos=[2, 1, 1],
    )
    scheduler = SimpleNamespace(num_running_reqs=3, num_waiting_reqs=1, spec_decoding_stats=drafts)
    statistics.record(scheduler, SimpleNamespace(num_preempted_reqs=1), mm_cache_stats=None)
    counted = step(statistics)
    assert (counted.running, counted.waiting, counted.preempted) == (3, 1, 1)
    assert (counted.drafts, counted.draft_tokens, counted.accepted_tokens) == (2, 6, 4)
    assert counted.accepted_per_position == [2, 1, 1]
    drafts.num_accepted_tokens_per_pos[0] = 99
    assert counted.accepted_per_position == [2, 1, 1]
    assert step(statistics).running is None


def test_a_step_without_drafts_counts_none() -> None:
    statistics = Statistics()
    scheduler = SimpleNamespace(num_running_reqs=1, num_waiting_reqs=0, spec_decoding_stats=None)
    statistics.record(scheduler, None)
    counted = step(statistics)
    assert (counted.running, counted.drafts, counted.preempted) == (1, None, None)


# --- words and configuration -------------------------------------------------------------------


def test_errors_are_told_by_type_and_message() -> None:
    told = {"error": "ValueError", "message": "no"}
    assert records.failure("refused", ValueError("no")) == {"type": "refused", **told}
    assert records.refusal("a", ValueError("no")) == {"type": "refusal", "request": "a", **told}


def test_the_clock_runs_forward_from_zero() -> None:
    clock = records.Clock()
    first, second = clock.now_ns(), clock.now_ns()
    assert 0 <= first <= second


def test_a_configuration_is_flattened_to_plain_values(foreign: Foreign) -> None:
    assert foreign("outputs", "flattened") == {
        "model.text": "a",
        "model.number": "0.5",
        "model.kind": "FAST",
        "model.nothing": "None",
        "model.dtype": "torch.bfloat16",
    }
