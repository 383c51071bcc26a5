"""Records are hostile: what could lead a kernel astray is refused, with the field's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.fakes import oracles
from tests.fakes.oracles import Arrays
from tprig.checkers.oracle.bounds import CallBoundsError, arms, require_bounds

Change = Callable[[Arrays], None]


def put(name: str, place: Any, value: float) -> Change:  # noqa: ANN401 - an index
    def change(tensors: Arrays) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name][place] = value

    return change


def become(name: str, array: NDArray[Any]) -> Change:
    def change(tensors: Arrays) -> None:
        tensors[name] = array

    return change


def drop(name: str) -> Change:
    def change(tensors: Arrays) -> None:
        del tensors[name]

    return change


def check(*changes: Change) -> None:
    given, returned = oracles.inputs(), oracles.outputs()
    tensors = {**given, **returned}
    for change in changes:
        change(tensors)
    names = [name for name in tensors if name in given or name not in returned]
    call = oracles.captured(
        {name: tensors[name] for name in names},
        {name: array for name, array in tensors.items() if name not in names},
    )
    require_bounds(call.call, tensors)


def bad_words(**changes: Any) -> list[Change]:  # noqa: ANN401 - arrays
    """One bad word of two tokens, with some of its buffers otherwise."""
    held = {
        "num_bad_words": np.array([1], dtype=np.int32),
        "bad_word_offsets": np.array([[0, 2]], dtype=np.int32),
        "bad_word_token_ids": np.array([[4, 5]], dtype=np.int32),
        "all_token_ids": np.array([[1, 2, 3]], dtype=np.int32),
        **changes,
    }
    return [become(name, np.asarray(array)) for name, array in held.items()]


def int32(values: Any) -> NDArray[np.int32]:  # noqa: ANN401 - nested lists
    return np.array(values, dtype=np.int32)


def test_a_sound_call_passes() -> None:
    check()
    check(*bad_words())


OUT_OF_BOUNDS: list[tuple[str, list[Change]]] = [
    ("logits_indices", [put("logits_indices", 2, 4)]),
    ("logits_indices", [put("logits_indices", 0, -1)]),
    ("input_ids", [put("input_ids", 1, oracles.VOCAB_SIZE)]),
    ("input_ids", [put("input_ids", 1, -2)]),
    ("positions", [put("positions", 3, -1)]),
    ("positions", [put("positions", 3, 2**40)]),
    ("idx_mapping", [put("idx_mapping", 0, oracles.SLOTS)]),
    ("idx_mapping", [put("idx_mapping", 0, -1)]),
    ("idx_mapping_np", [put("idx_mapping_np", 0, 1)]),
    ("expanded_idx_mapping", [put("expanded_idx_mapping", 3, 1)]),
    ("expanded_local_pos", [put("expanded_local_pos", 3, 2)]),
    ("cu_num_logits", [put("cu_num_logits", 1, 5)]),
    ("cu_num_logits", [put("cu_num_logits", 1, 3)]),
    ("cu_num_logits", [put("cu_num_logits", 0, 1)]),
    ("cu_num_logits_np", [put("cu_num_logits_np", 1, 3)]),
    ("seq_lens", [put("seq_lens", 0, -1)]),
    ("top_k", [put("top_k", 0, 0)]),
    ("top_k", [put("top_k", 0, oracles.VOCAB_SIZE + 1)]),
    ("num_logprobs", [put("num_logprobs", 0, oracles.VOCAB_SIZE + 1)]),
    ("temperature", [put("temperature", 0, np.nan)]),
    ("top_p", [put("top_p", 0, -0.5)]),
    ("prefill_len", [put("prefill_len", 0, 33)]),
    ("total_len", [put("total_len", 0, -1)]),
    ("num_allowed_token_ids", [put("num_allowed_token_ids", 0, -1)]),
    ("num_allowed_token_ids", [put("num_allowed_token_ids", 0, 1025)]),
    ("allowed_token_ids", [put("num_allowed_token_ids", 0, 2)]),
    (
        "allowed_token_ids",
        [put("num_allowed_token_ids", 0, 1), become("allowed_token_ids", int32([[16]]))],
    ),
    (
        "stop_token_ids",
        [put("num_stop_token_ids", 0, 1), become("stop_token_ids", int32([[-1]]))],
    ),
    ("logit_bias", [put("num_logit_bias", 0, 1), become("logit_bias_token_ids", int32([[1]]))]),
    ("prompt_bin_mask", [put("use_penalty", 0, 1)]),
    ("bad_word_offsets", bad_words(bad_word_offsets=int32([[0, 3]]))),
    ("bad_word_offsets", bad_words(bad_word_offsets=int32([[1, 0]]))),
    ("bad_word_offsets", bad_words(bad_word_offsets=int32([[0]]))),
    ("bad_word_token_ids", bad_words(bad_word_token_ids=int32([[4, 16]]))),
    ("total_len", bad_words(all_token_ids=int32([[1, 2]]))),
    ("num_verified", [put("num_verified", 0, 5)]),
    ("num_verified", [put("num_verified", 0, 0)]),
    ("sampled", [become("sampled", np.arange(2))]),
    ("draft_logits", [become("draft_logits", np.zeros((1, 2, 16), dtype=np.float32))]),
    ("logits", [become("logits", np.zeros((4, 16)))]),
    ("seeds", [become("seeds", int32([7]))]),
    ("seeds", [drop("seeds")]),
    ("cu_num_logits", [drop("cu_num_logits")]),
    ("unheard_of", [become("unheard_of", int32([1]))]),
    ("synthetic_conditional_rates", [
        become("synthetic_conditional_rates", np.ones(3, dtype=np.float32))
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("field", "changes"), OUT_OF_BOUNDS)
def test_what_is_out_of_bounds_is_refused_with_the_field_s_name(
    field: str, changes: list[Change]
) -> None:
    with pytest.raises(CallBoundsError) as caught:
        check(*changes)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: expected ")


@pytest.mark.parametrize(
    ("flag", "value", "field"),
    [
        ("vocab_size", 17, "flags.vocab_size"),
        ("max_num_reqs", 2**31 - 1, "flags"),
        ("max_model_len", 2**31 - 1, "flags"),
        ("num_speculative_steps", 2**20, "flags"),
        ("logits_stride", oracles.VOCAB_SIZE - 1, "flags.logits_stride"),
        ("logits_stride", 2**20, "flags.logits_stride"),
        ("num_speculative_steps", 2, "cu_num_logits"),
        ("max_num_reqs", 2, "idx_mapping"),
    ],
)
def test_flags_that_the_tensors_contradict_are_refused(flag: str, value: int, field: str) -> None:
    flags = msgspec.structs.replace(oracles.FLAGS, **{flag: value})
    call = oracles.captured(flags=flags)
    with pytest.raises(CallBoundsError) as caught:
        require_bounds(call.call, call.tensors())
    assert caught.value.field in (field, "flags.num_speculative_steps")


def test_replay_is_not_for_greedy_requests() -> None:
    tensors = oracles.inputs()
    assert arms(tensors) == ["off", "on"]
    put("temperature", 0, 0.0)(tensors)
    assert arms(tensors) == ["off"]
