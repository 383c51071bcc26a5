"""Judges logprobs (or logits) of chosen tokens, the best of a row, and the rank of one."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tprig.checkers.reference.call import LogprobsMode
from tprig.checkers.reference.judgement import Discrepancy, Subject
from tprig.checkers.reference.processing import Processor
from tprig.checkers.reference.rows import Ids, Interval, Row
from tprig.checkers.reference.scope import Difference, Scope

RAW = {LogprobsMode.RAW_LOGITS, LogprobsMode.RAW_LOGPROBS}
LOGITS = {LogprobsMode.RAW_LOGITS, LogprobsMode.PROCESSED_LOGITS}


def judge_scores(
    scope: Scope, processor: Processor, rows: list[Row], sampled: int
) -> Iterator[Discrepancy]:
    """Judge the scores in the rows that sampled a token; what fills the others is never read."""
    result, mode = scope.result, scope.call.logprobs_mode
    given = 0 if result.logprob_token_ids is None else result.logprob_token_ids.shape[1]
    if given < 1 + scope.request.num_logprobs:
        wanted = f"scores of the sampled token and the {scope.request.num_logprobs} best"
        yield scope.report(Subject.LOGPROBS, 0, Difference(wanted, f"{given} of them"))
    if result.logprob_token_ids is None or result.logprobs is None or result.ranks is None:
        return
    for step, row in enumerate(rows[:sampled]):
        at = scope.start + step
        ids, found, rank = result.logprob_token_ids[at], result.logprobs[at], int(result.ranks[at])
        scores = ScoresOfRow(processor.raw(at) if mode in RAW else row, logits=mode in LOGITS)
        scope.count(Subject.LOGPROBS, len(ids))
        for unlike in scores.differences(ids, found, int(result.sampled[scope.index, step])):
            yield scope.report(Subject.LOGPROBS, step, unlike)
        fewest, expected, most = scores.rank(int(ids[0]))
        scope.count(Subject.RANKS, ambiguous=int(fewest != most))
        if rank != expected:
            unlike = Difference(str(expected), str(rank), ambiguous=fewest <= rank <= most)
            yield scope.report(Subject.RANKS, step, unlike)


class ScoresOfRow:
    """What vLLM reports of the tokens of one row."""

    def __init__(self, row: Row, *, logits: bool) -> None:
        self.row = row
        self._mass = None if logits else row.log_mass

    def of(self, token: int) -> Interval:
        """The token's logprob, or its logit; NaN logprobs where the row has no token at all."""
        logit = self.row.at(token)
        return logit if self._mass is None else self._mass.logprob(logit)

    def differences(
        self, ids: Ids, found: npt.NDArray[np.float32], sampled: int
    ) -> Iterator[Difference]:
        """Scores that are off, and tokens that are not the best after the sampled one."""
        if sampled != ids[0]:
            yield Difference(f"the score of the sampled token {sampled}", f"of token {ids[0]}")
        for token, value in zip(map(int, ids), map(float, found), strict=True):
            expected = self.of(token)
            if not _within(expected, value):
                finite = math.isfinite(expected.value) and math.isfinite(value)
                yield Difference(
                    f"{expected.value!r} for token {token}",
                    repr(value),
                    margin=abs(value - expected.value) if finite else None,
                    band=expected.error if finite else None,
                )
        yield from self._best(ids[1:])

    def _best(self, ids: Ids) -> Iterator[Difference]:
        """The tokens after the sampled one are the largest, in descending order."""
        if not len(ids):
            return
        scores = self.row.scores()
        if len(np.unique(ids)) != len(ids):
            yield Difference("different tokens", f"{ids.tolist()}")
        rising = np.flatnonzero(scores.low[ids[1:]] > scores.high[ids[:-1]])
        if len(rising):
            yield Difference("the best tokens in descending order", f"{ids.tolist()}")
        others = scores.low.copy()
        others[ids] = -np.inf
        if others.max() > scores.high[ids].min():
            yield Difference(
                f"token {int(np.argmax(others))} among the {len(ids)} best",
                f"{ids.tolist()}",
            )

    def rank(self, token: int) -> tuple[int, int, int]:
        """How many tokens score at least as much: fewest, by the reference, most."""
        scores, own = self.row.scores(), self.row.at(token)
        value = scores.value
        if own.high == -math.inf:
            return len(value), len(value), len(value)
        ties = (value == own.value) & (self.row.error == self.row.error[token]) & ~self.row.maybe
        if self.row.maybe[token]:
            ties = np.zeros_like(ties)
        ties[token] = True
        low = int(((scores.low > own.high) | ties).sum())
        high = int(((scores.high >= own.low) | ties).sum())
        return low, int((value >= own.value).sum()), high


def _within(expected: Interval, found: float) -> bool:
    if math.isnan(expected.value) or math.isnan(found):
        return math.isnan(expected.value) and math.isnan(found)
    return expected.low <= found <= expected.high
