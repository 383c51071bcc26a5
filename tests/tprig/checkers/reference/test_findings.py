"""Where vLLM's sampler is at fault, on the smallest call that shows it.

Each of these tests fails when vLLM no longer does it: then it, and what excludes such calls in
`strategies.py`, can go. The Triton path runs in Triton's interpreter here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.tprig.checkers.reference.conftest import RealSampler
from tests.tprig.checkers.reference.drawn import Drawn, History
from tests.tprig.checkers.reference.small import call, request
from tprig.checkers.reference import (
    Discrepancy,
    SamplerCall,
    Subject,
    TieRule,
    Verification,
    judge_call,
)

INF = float("inf")
HISTORY = History(np.arange(2), 1)


def failures(real: RealSampler, made: SamplerCall) -> list[Discrepancy]:
    drawn = Drawn(made, (HISTORY,) * made.num_requests)
    return list(judge_call(made, real(drawn)).failures)


def filtered(
    real: RealSampler,
    logits: Sequence[float],
    rule: TieRule,
    **parameters: Any,  # noqa: ANN401
) -> list[int]:
    """What is left of one row."""
    made = call([logits], [request(len(logits), **parameters)], [()], tie_rule=rule)
    result = real(Drawn(made, (HISTORY,)))
    assert result.processed_logits is not None
    kept = [int(token) for token in np.flatnonzero(result.processed_logits[0] > -INF)]
    named = {failure.what for failure in judge_call(made, result).failures}
    assert (Subject.PROCESSED in named) == (rule is TieRule.EXACTLY_K)
    return kept


def test_the_rank_of_a_masked_token_exceeds_the_vocabulary(real: RealSampler) -> None:
    """Synthetic verification emits a token that top-k has masked.

    All 4 tokens have at least its logit, -inf; vLLM counts the padding of its block along.
    """
    made = call(
        [[3.0, 2.0, 1.0, 0.0]] * 2,
        [request(top_k=1, num_logprobs=0)],
        [(2,)],
        verification=Verification.SYNTHETIC,
        synthetic_rates=np.ones(1, dtype=np.float32),
    )
    (rank,) = failures(real, made)
    assert (rank.what, rank.expected, rank.found) == (Subject.RANKS, "4", "8192")


@pytest.mark.parametrize(
    ("logits", "parameters", "right", "wrong"),
    [
        # One token far below the others, as a logit bias of -100 leaves it: the scale of the
        # kernel's exponentials is mean plus ten standard deviations, at which they underflow.
        ([2.0, 1.0, 0.0, -100.0], {"top_p": 0.6}, [0], [0, 1, 2, 3]),
        # All tokens are needed to reach top_p: the search for a probability below which to cut
        # starts at the least likely one, and cuts it.
        ([2.0, 0.0, -INF, -INF], {"top_p": 0.95}, [0, 1], [0]),
        # All tokens tie: there is no logit below which to cut.
        ([1.0, 1.0, 1.0, 1.0], {"top_k": 2}, [0, 1, 2, 3], [0, 1, 2, 3]),
    ],
)
def test_the_triton_path_filters_otherwise(
    real: RealSampler, logits: list[float], parameters: dict[str, Any], right: list[int],
    wrong: list[int],
) -> None:  # fmt: skip
    assert filtered(real, logits, TieRule.KEEP_ALL, **parameters) == right
    assert filtered(real, logits, TieRule.EXACTLY_K, **parameters) == wrong
