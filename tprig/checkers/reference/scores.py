"""Logprobs (or logits) of chosen tokens, the best of a row, and the rank of one."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tprig.checkers.reference.rows import Ids, Interval, Row
from tprig.checkers.reference.supports import Difference


class ScoresOfRow:
    """What vLLM reports of the tokens of one row."""

    def __init__(self, row: Row, *, logits: bool) -> None:
        self.row = row
        self._mass = None if logits else row.log_mass()

    def of(self, token: int) -> Interval:
        """The token's logprob, or its logit; NaN logprobs where the row has no token at all."""
        logit = self.row.at(token)
        return logit if self._mass is None else self._mass.logprob(logit)

    def differences(self, ids: Ids, found: npt.NDArray[np.float32]) -> Iterator[Difference]:
        """Scores that are off, and tokens that are not the best after the sampled one."""
        for token, value in zip(map(int, ids), map(float, found), strict=True):
            expected = self.of(token)
            if not _within(expected, value):
                margin = abs(value - expected.value)
                yield Difference(
                    f"{expected.value!r} for token {token}",
                    repr(value),
                    ambiguous=False,
                    margin=margin if math.isfinite(margin) else None,
                    band=expected.error,
                )
        yield from self._best(ids[1:])

    def _best(self, ids: Ids) -> Iterator[Difference]:
        """The tokens after the sampled one are the largest, in descending order."""
        if not len(ids):
            return
        scores = self.row.scores()
        if len(np.unique(ids)) != len(ids):
            yield Difference("different tokens", f"{ids.tolist()}", ambiguous=False)
        rising = np.flatnonzero(scores.low[ids[1:]] > scores.high[ids[:-1]])
        if len(rising):
            yield Difference(
                "the best tokens in descending order", f"{ids.tolist()}", ambiguous=False
            )
        others = scores.low.copy()
        others[ids] = -np.inf
        if others.max() > scores.high[ids].min():
            yield Difference(
                f"token {int(np.argmax(others))} among the {len(ids)} best",
                f"{ids.tolist()}",
                ambiguous=False,
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
