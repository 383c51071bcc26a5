from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tprig.checkers.reference.small import call, request
from tprig.checkers.reference.processing import Processor

INF = float("inf")
LOGITS = [2.0, -1.0, 0.5, 1.0]


def processed(row: int = 0, drafts: tuple[int, ...] = (), **parameters: Any) -> list[float]:  # noqa: ANN401
    logits = [LOGITS] * (len(drafts) + 1)
    made = call(logits, [request(**parameters)], [drafts])
    return [float(logit) for logit in Processor(made).processed(row).nominal()]


def ids(*tokens: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(tokens, dtype=np.int64)


def counts(*numbers: int) -> dict[str, Any]:
    return {"output_counts": ids(*numbers), "prompt_mask": np.zeros(4, dtype=np.bool_)}


def test_without_parameters_the_logits_stay() -> None:
    assert processed() == LOGITS


def test_temperature_divides_and_greedy_does_not() -> None:
    assert processed(temperature=0.5) == [4.0, -2.0, 1.0, 2.0]
    assert processed(temperature=0.0) == LOGITS


def test_only_allowed_tokens_are_kept() -> None:
    assert processed(allowed_token_ids=ids(1, 3)) == [-INF, -1.0, -INF, 1.0]


def test_bias_is_added_before_penalties_scale() -> None:
    bias: dict[str, Any] = {"bias_token_ids": ids(1), "bias": np.array([3.0], dtype=np.float32)}
    assert processed(**bias, **counts(0, 1, 0, 0), repetition_penalty=2.0)[1] == 1.0


def test_repetition_divides_what_is_positive_and_multiplies_what_is_not() -> None:
    mask = np.array([True, True, False, False])
    prompt: dict[str, Any] = {"prompt_mask": mask, "output_counts": ids(0, 0, 0, 2)}
    assert processed(repetition_penalty=2.0, **prompt) == [1.0, -2.0, 0.5, 0.5]


def test_frequency_counts_and_presence_does_not() -> None:
    found = processed(frequency_penalty=0.5, presence_penalty=0.25, **counts(0, 3, 1, 0))
    assert found == [2.0, -1.0 - 1.5 - 0.25, 0.5 - 0.5 - 0.25, 1.0]


def test_drafts_before_a_row_count_as_emitted_there() -> None:
    penalty = {"frequency_penalty": 1.0, **counts(0, 0, 0, 0)}
    assert processed(0, drafts=(3, 3), **penalty)[3] == 1.0
    assert processed(1, drafts=(3, 3), **penalty)[3] == 0.0
    assert processed(2, drafts=(3, 3), **penalty)[3] == -1.0


@pytest.mark.parametrize(("min_len", "masked"), [(11, False), (12, True)])
def test_stop_tokens_are_masked_until_the_least_length(min_len: int, masked: bool) -> None:  # noqa: FBT001
    """The row at position 10 decides the token at 11."""
    found = processed(stop_token_ids=ids(0, 2), min_len=min_len)
    assert (found == [-INF, -1.0, -INF, 1.0]) == masked


@pytest.mark.parametrize("restore", [False, True])
def test_stop_tokens_come_back_where_nothing_else_is_left(restore: bool) -> None:  # noqa: FBT001
    found = processed(
        allowed_token_ids=ids(2), stop_token_ids=ids(2), min_len=20, restore_when_all_masked=restore
    )
    assert found == [-INF, -INF, 0.5 if restore else -INF, -INF]


@pytest.mark.parametrize(
    ("row", "word", "masked"),
    [(0, (2,), 2), (0, (3, 1), 1), (0, (1, 3, 0), 0), (0, (0, 1), None), (0, (0, 1, 3, 2), None),
     (1, (2, 1), 1), (1, (3, 2, 0), 0), (1, (3, 1), None)],
)  # fmt: skip
def test_a_bad_word_is_masked_where_its_beginning_was_said(
    row: int, word: tuple[int, ...], masked: int | None
) -> None:
    """Tokens 1 and 3 were emitted, token 2 is drafted."""
    found = processed(row, drafts=(2,), bad_words=(ids(*word),), output_token_ids=ids(1, 3))
    assert np.flatnonzero(np.isneginf(found)).tolist() == ([] if masked is None else [masked])


def test_filters_follow_the_temperature_in_their_order() -> None:
    """Temperature 2 makes the second likeliest e**-0.5 as likely as the first."""
    assert processed(temperature=2.0, min_p=0.6) == [1.0, -INF, -INF, 0.5]
    assert processed(temperature=1.0, min_p=0.6) == [2.0, -INF, -INF, -INF]
    assert processed(top_k=3, top_p=0.7) == [2.0, -INF, -INF, 1.0]


def test_a_greedy_request_is_filtered_only_in_company() -> None:
    greedy, other = request(temperature=0.0, top_k=1), request(temperature=0.5)
    alone = call([LOGITS], [greedy], [()])
    together = call([LOGITS] * 2, [greedy, other], [(), ()])
    apart = call([LOGITS] * 2, [greedy, other], [(), ()], max_chunk_logits=1)
    assert Processor(alone).processed(0).nominal().tolist() == LOGITS
    assert Processor(together).processed(0).nominal().tolist() == [2.0, -INF, -INF, -INF]
    assert Processor(apart).processed(0).nominal().tolist() == LOGITS


def test_drafts_before_the_end_of_the_prefill_are_placeholders() -> None:
    drafted = call([LOGITS] * 4, [request(prefill_len=10), request(prefill_len=11)], [(1,), (2,)])
    assert Processor(drafted).verified.tolist() == [0, 1, 0, -1]


def test_invalid_drafts_are_refused_but_still_penalised() -> None:
    invalid = np.array([False, True])
    made = call([LOGITS] * 2, [request(frequency_penalty=1.0, **counts(0, 0, 0, 0))], [(3,)],
                invalid_drafts=invalid)  # fmt: skip
    processor = Processor(made)
    assert processor.verified.tolist() == [0, -1]
    assert processor.processed(1).nominal()[3] == 0.0


def test_each_operation_widens_the_error_and_exact_logits_have_none() -> None:
    raw = Processor(call([LOGITS], [request()], [()])).processed(0)
    divided = Processor(call([LOGITS], [request(temperature=0.7)], [()])).processed(0)
    assert raw.error.tolist() == [0.0] * 4
    assert (divided.error > 0.0).all()
    float32 = np.array(LOGITS, dtype=np.float32) / np.float32(0.7)
    assert (np.abs(float32 - divided.value) <= divided.error).all()
