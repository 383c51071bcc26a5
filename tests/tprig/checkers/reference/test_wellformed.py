from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.tprig.checkers.reference.drawn import FEATURES, Wishes, draw
from tests.tprig.checkers.reference.sound import sound_result
from tprig.checkers.reference import MalformedCallError, Verification, require_wellformed

CALL = draw(
    Wishes(seed=4, requests=2, steps=2, drafts="near", features=frozenset(FEATURES) - {"short"})
).call
RESULT = sound_result(CALL)
HUGE = 2**40


def integers(*values: int) -> Any:  # noqa: ANN401 - an array that stands for any field
    return np.array(values, dtype=np.int64)


def test_a_drawn_call_and_its_result_are_well_formed() -> None:
    require_wellformed(CALL, RESULT)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logits", np.zeros((6, 17, 1), dtype=np.float32)),
        ("logits", np.zeros((6, 17), dtype=np.int32)),
        ("cu_num_logits", integers(0, 3)),
        ("cu_num_logits", integers(0, 3, 7)),
        ("cu_num_logits", integers(0, 6, 6)),
        ("cu_num_logits", integers(0, 1, 6)),
        ("cu_num_logits", integers(1, 3, 6)),
        ("cu_num_logits", integers(0, -3, 6)),
        ("input_ids", integers(0, 0, 0, 0, 0, 17)),
        ("input_ids", integers(0, 0, 0, 0, 0, -2)),
        ("input_ids", integers(0, 0, 0)),
        ("positions", integers(0, 1, 2, 5, 5, 6)),
        ("positions", integers(-1, 0, 1, 5, 6, 7)),
        ("positions", np.zeros(6, dtype=np.float32)),
        ("idx_mapping", integers(1, 1)),
        ("idx_mapping", integers(-1, 1)),
        ("expanded_idx_mapping", integers(0, 0, 0, 0, 0, HUGE)),
        ("expanded_local_pos", integers(0, 1, 2, 0, 1, HUGE)),
        ("num_speculative_steps", 0),
        ("draft_logits", np.zeros((2, 3, 17), dtype=np.float32)),
        ("draft_logits", np.zeros((2, 2, 18), dtype=np.float32)),
        ("draft_logits", np.zeros((2, 2, 0), dtype=np.float32)),
        ("invalid_drafts", np.zeros(6, dtype=np.int64)),
        ("invalid_drafts", np.zeros(5, dtype=np.bool_)),
        ("synthetic_rates", np.ones(2, dtype=np.float32)),
        ("synthetic_rates", None),
        ("max_chunk_logits", 0),
    ],
)
def test_a_bad_field_of_a_call_is_named(field: str, value: object) -> None:
    fields: dict[str, Any] = {field: value}
    if field == "synthetic_rates" and value is None:
        fields["verification"] = Verification.SYNTHETIC
    with pytest.raises(MalformedCallError, match=rf"^{field}: expected .*, found ") as error:
        require_wellformed(replace(CALL, **fields))
    assert error.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", 0),
        ("top_k", 18),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("seed", 2**63),
        ("num_logprobs", -2),
        ("repetition_penalty", 0.0),
        ("frequency_penalty", float("inf")),
        ("prompt_mask", np.zeros(16, dtype=np.bool_)),
        ("output_counts", integers(*[-1] * 17)),
        ("allowed_token_ids", integers(17)),
        ("stop_token_ids", integers(-1)),
        ("output_token_ids", integers(HUGE)),
        ("bias_token_ids", integers(3, 3)),
        ("bias", np.array([np.inf, 0.0], dtype=np.float32)),
        ("bad_words", (integers(),)),
    ],
)
def test_a_bad_field_of_a_request_is_named(field: str, value: object) -> None:
    plain = replace(
        CALL.requests[1], bias_token_ids=integers(1, 2), bias=np.zeros(2, dtype=np.float32)
    )
    fields: dict[str, Any] = {field: value}
    bad = replace(CALL, requests=(CALL.requests[0], replace(plain, **fields)))
    with pytest.raises(MalformedCallError, match=rf"^requests\[1\]\.{field}: expected "):
        require_wellformed(bad)


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"repetition_penalty": 1.1, "prompt_mask": None}, "prompt_mask"),
        ({"presence_penalty": 1.0, "output_counts": None}, "output_counts"),
        ({"bad_words": (integers(1, 2),), "output_token_ids": None}, "output_token_ids"),
        ({"bias_token_ids": integers(1), "bias": None}, "bias"),
    ],
)
def test_what_a_parameter_needs_is_missed(parameters: dict[str, Any], field: str) -> None:
    plain = replace(CALL.requests[0], output_counts=np.zeros(17, dtype=np.int64))
    bad = replace(CALL, requests=(replace(plain, **parameters), CALL.requests[1]))
    with pytest.raises(MalformedCallError, match=rf"^requests\[0\]\.{field}: expected "):
        require_wellformed(bad)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sampled", np.zeros((2, 2), dtype=np.int64)),
        ("num_sampled", integers(1)),
        ("num_rejected", np.ones(2, dtype=np.float32)),
        ("logprob_token_ids", None),
        ("logprob_token_ids", np.full((6, 3), 17)),
        ("logprobs", np.zeros((6, 2), dtype=np.float32)),
        ("ranks", integers(1)),
        ("supports", ()),
        ("supports", ((integers(17),), ())),
        ("processed_logits", np.zeros((6, 16), dtype=np.float32)),
    ],
)
def test_a_bad_field_of_a_result_is_named(field: str, value: object) -> None:
    fields: dict[str, Any] = {field: value}
    with pytest.raises(MalformedCallError, match=f"^{'logprobs' if value is None else field}"):
        require_wellformed(CALL, replace(RESULT, **fields))
