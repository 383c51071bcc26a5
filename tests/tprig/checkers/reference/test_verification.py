"""What is emitted follows the target's distribution, whatever was drafted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.tprig.checkers.reference.small import call, request
from tprig.checkers.reference import Verification
from tprig.checkers.reference.noise import accept_uniform
from tprig.checkers.reference.processing import Processor
from tprig.checkers.reference.residual import block_threshold
from tprig.checkers.reference.rows import Interval
from tprig.checkers.reference.verification import AcceptTest, RequestVerification

TARGET = np.array([0.5, 0.3, 0.15, 0.05])
DRAFT = np.array([0.1, 0.2, 0.3, 0.4])
SEEDS = 800


def verify(drafts: tuple[int, ...], seed: int = 7, *, probabilistic: bool = False,
           **fields: Any) -> RequestVerification:  # fmt: skip # noqa: ANN401
    logits = [np.log(TARGET).tolist()] * (len(drafts) + 1)
    if probabilistic:
        fields["draft_logits"] = np.tile(np.log(DRAFT).astype(np.float32), (1, len(drafts), 1))
    temperature = fields.pop("temperature", 1.0)
    made = call(logits, [request(temperature=temperature, seed=seed)], [drafts], **fields)
    processor = Processor(made)
    rows = [processor.processed(row) for row in range(len(drafts) + 1)]
    return RequestVerification(processor, 0, rows)


def emitted(verification: RequestVerification) -> list[int]:
    accepted = verification.accepted_length
    return [*verification.drafts[:accepted].tolist(), verification.successor(accepted).winner]


@pytest.mark.parametrize("draft", range(4))
def test_a_one_hot_draft_is_accepted_as_often_as_it_is_likely(draft: int) -> None:
    for seed in range(200):
        accepted = verify((draft,), seed).accepted_length == 1
        assert accepted == (TARGET[draft] > accept_uniform(seed, 10))


@pytest.mark.parametrize("draft", range(4))
def test_a_drawn_draft_is_accepted_by_the_ratio(draft: int) -> None:
    for seed in range(200):
        accepted = verify((draft,), seed, probabilistic=True).accepted_length == 1
        assert accepted == (TARGET[draft] > accept_uniform(seed, 10) * DRAFT[draft])


@pytest.mark.parametrize("verification", [Verification.STANDARD, Verification.BLOCK])
@pytest.mark.parametrize("probabilistic", [False, True])
def test_the_first_token_follows_the_target(
    verification: Verification, probabilistic: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """One-hot drafts do not even have to come from a distribution that is known."""
    rng = np.random.default_rng(5)
    first = []
    for seed in range(SEEDS):
        drafts = tuple(rng.choice(4, size=2, p=DRAFT).tolist())
        found = verify(drafts, seed, probabilistic=probabilistic, verification=verification)
        first.append(emitted(found)[0])
    frequencies = np.bincount(first, minlength=4) / SEEDS
    assert (np.abs(frequencies - TARGET) <= 4.0 * np.sqrt(TARGET / SEEDS)).all()


def test_a_refused_one_hot_draft_is_never_recovered() -> None:
    for seed in range(100):
        assert verify((0,), seed).successor(0).winner != 0


def test_a_token_that_the_drafter_likes_better_is_never_recovered() -> None:
    recovered = {verify((3,), seed, probabilistic=True).successor(0).winner for seed in range(100)}
    assert recovered == {0, 1}


def test_placeholders_end_verification_and_leave_the_target_as_it_is() -> None:
    drawn = {verify((-1, 0), seed).successor(0).winner for seed in range(100)}
    assert verify((-1, 0)).accepted_length == 0
    assert drawn == {0, 1, 2, 3}


def test_greedy_requests_follow_the_largest_logit() -> None:
    assert emitted(verify((0, 0, 1), temperature=0.0)) == [0, 0, 0]
    assert emitted(verify((0, 0), temperature=0.0)) == [0, 0, 0]
    block = verify((0, 1), temperature=0.0, verification=Verification.BLOCK)
    assert emitted(block) == [0, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_synthetic_verification_looks_at_the_rates_alone(temperature: float) -> None:
    rates = np.array([1.0, 0.0], dtype=np.float32)
    found = verify((3, 3), temperature=temperature, verification=Verification.SYNTHETIC,
                   synthetic_rates=rates)  # fmt: skip
    assert found.accepted_length == 1
    assert not any(found.test(step).ambiguous for step in range(2))


def test_block_verification_accepts_at_least_as_much() -> None:
    """Of the same draws: that is the point of it."""
    rng = np.random.default_rng(8)
    standard = block = 0
    for seed in range(250):
        drafts = tuple(rng.choice(4, size=3, p=DRAFT).tolist())
        standard += verify(drafts, seed, probabilistic=True).accepted_length
        block += verify(
            drafts, seed, probabilistic=True, verification=Verification.BLOCK
        ).accepted_length
    assert block > standard


def test_a_drafter_with_a_smaller_vocabulary_narrows_what_is_drawn() -> None:
    narrow = np.tile(np.log(DRAFT[:2]).astype(np.float32), (1, 1, 1))
    drawn = {verify((0,), seed, draft_logits=narrow).successor(1).winner for seed in range(60)}
    assert drawn == {0, 1}


def test_comparisons_within_the_band_are_left_open() -> None:
    near = AcceptTest.larger(Interval.around(1.0, 0.1), Interval.around(1.05, 0.1))
    assert (near.accepted, near.ambiguous) == (False, True)
    assert near.allows(accepted=True)
    assert near.allows(accepted=False)
    assert near.margin == pytest.approx(0.05)
    far = AcceptTest.larger(Interval.around(1.0, 0.1), Interval.around(1.5, 0.1))
    assert not far.allows(accepted=True)


def test_nothing_is_accepted_where_the_target_has_nothing() -> None:
    nothing = Interval(math.nan, math.nan, math.nan)
    test = AcceptTest.larger(nothing, Interval.around(-1.0, 0.1))
    assert (test.accepted, test.possible) == (False, False)


def test_the_block_threshold_is_the_paper_s() -> None:
    threshold = block_threshold(Interval.around(0.5, 0.0), Interval.around(0.25, 0.0))
    assert threshold.value == pytest.approx(0.25 / (0.25 + 0.5))
    assert threshold.low < threshold.value < threshold.high
    certain = block_threshold(Interval.around(1.0, 0.0), Interval.around(0.0, 0.0))
    assert certain.value == 1.0
