"""The decisions of one request in one call: which drafts are accepted, and what follows them.

The standard test accepts draft x with p(x) > u * q(x) (Leviathan et al., "Fast inference from
transformers via speculative decoding", ICML 2023); block verification looks at whole prefixes (Sun
et al., "Block verification accelerates speculative decoding", ICLR 2025); synthetic verification
ignores both distributions. A refused draft is replaced by a token of the residual distribution
max(p - q, 0); after the last draft comes a bonus token of the target's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tprig.checkers.reference import noise
from tprig.checkers.reference.call import Verification
from tprig.checkers.reference.choice import Choice, gumbel_max
from tprig.checkers.reference.processing import Processor
from tprig.checkers.reference.residual import (
    block_threshold,
    log_residual,
    one_hot_residual_mass,
    residual_mass,
)
from tprig.checkers.reference.rows import ROUNDING, Interval, Row, Scores

ZERO = Interval(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class AcceptTest:
    """Whether one draft is accepted, or (block verification) the prefix that ends with it."""

    accepted: bool
    possible: bool
    """Float32 may accept."""
    certain: bool
    """Float32 must accept."""
    margin: float | None = None
    """Distance to the other outcome: of log-probabilities or scores in nats, of block verification
    as a probability; None where the outcome is not a matter of degree."""
    band: float | None = None

    @property
    def ambiguous(self) -> bool:
        """Float32 may decide either way."""
        return self.possible and not self.certain

    def allows(self, *, accepted: bool) -> bool:
        """Whether float32 arithmetic can lead to this outcome."""
        return self.possible if accepted else not self.certain

    @staticmethod
    def exact(*, accepted: bool) -> AcceptTest:
        """A test without rounding."""
        return AcceptTest(accepted, accepted, accepted)

    @staticmethod
    def larger(left: Interval, right: Interval) -> AcceptTest:
        """`left > right`, which NaN never is."""
        margin = abs(left.value - right.value)
        return AcceptTest(
            accepted=left.value > right.value,
            possible=left.high > right.low,
            certain=left.low > right.high,
            margin=margin if math.isfinite(margin) else None,
            band=left.error + right.error if math.isfinite(margin) else None,
        )

    @staticmethod
    def best(choice: Choice, draft: int) -> AcceptTest:
        """Whether the draft is the largest of a row."""
        return AcceptTest(
            accepted=choice.winner == draft,
            possible=choice.allows(draft),
            certain=choice.winner == draft and not choice.ambiguous,
            margin=abs(choice.margin(draft)),
            band=choice.band(draft),
        )

    @staticmethod
    def at_most(uniform: float, threshold: Interval) -> AcceptTest:
        """`uniform <= threshold`."""
        return AcceptTest(
            accepted=uniform <= threshold.value,
            possible=uniform <= threshold.high,
            certain=uniform <= threshold.low,
            margin=abs(uniform - threshold.value),
            band=threshold.error,
        )


class RequestVerification:
    """Everything that seed, position and logits decide for one request of a well-formed call."""

    def __init__(self, processor: Processor, index: int, rows: list[Row]) -> None:
        """`rows` are the request's processed ones [d + 1], over the target's whole vocabulary."""
        call = processor.call
        self.call = call
        self.request = call.requests[index]
        self.start, end = (int(boundary) for boundary in call.cu_num_logits[index : index + 2])
        self.drafts = processor.verified[self.start + 1 : end]
        """[d] -1 for a draft that must be refused."""
        logits = call.draft_logits
        self.width = call.vocab_size if logits is None else int(logits.shape[-1])
        """Tokens that verification looks at."""
        self._targets = [row.narrowed(self.width) for row in rows]
        self._draft_rows = (
            None
            if logits is None
            else [
                _over_temperature(logits[index, step], self.request.temperature)
                for step in range(len(self.drafts) if not self.greedy else 0)
            ]
        )

    @property
    def greedy(self) -> bool:
        """Temperature 0."""
        return self.request.temperature == 0.0

    @property
    def by_block(self) -> bool:
        """Whether whole prefixes are tested; greedy requests always go draft by draft."""
        return self.call.verification is Verification.BLOCK and not self.greedy

    def target(self, step: int) -> Row:
        """A processed row as far as verification looks at it."""
        return self._targets[step]

    def _logprobs(self, step: int) -> tuple[Scores, Scores] | None:
        """Of target and drafter, all tokens; None for one-hot drafts."""
        rows = self._draft_rows
        if rows is None:
            return None
        target = self.target(step).log_mass.logprobs(self.target(step))
        return target, rows[step].log_mass.logprobs(rows[step])

    def _target_logprob(self, step: int, token: int) -> Interval:
        row = self.target(step)
        return row.log_mass.logprob(row.at(token))

    def _draft_logprob(self, step: int, token: int) -> Interval:
        rows = self._draft_rows
        return ZERO if rows is None else rows[step].log_mass.logprob(rows[step].at(token))

    def _uniform(self, step: int) -> float:
        return noise.accept_uniform(self.request.seed, self._position(step))

    def _position(self, step: int) -> int:
        return int(self.call.positions[self.start + step])

    # --- which drafts are accepted ----------------------------------------------------------------

    def test(self, step: int) -> AcceptTest:
        """Of one draft, as if those before it had been accepted."""
        if self.by_block:
            return self.block_tests[step]
        draft = int(self.drafts[step])
        if draft < 0:
            return AcceptTest.exact(accepted=False)
        rates = self.call.synthetic_rates
        if rates is not None:
            return AcceptTest.exact(accepted=self._uniform(step) < float(rates[step]))
        if self.greedy:
            return AcceptTest.best(self.target_choice(step), draft)
        log_uniform = math.log(self._uniform(step))
        limit = Interval.around(log_uniform, ROUNDING * (1.0 + abs(log_uniform)))
        drafted = self._draft_logprob(step, draft)
        size = abs(log_uniform + drafted.value)
        limit = limit.plus(drafted, ROUNDING * size if math.isfinite(size) else 0.0)
        return AcceptTest.larger(self._target_logprob(step, draft), limit)

    @cached_property
    def block_tests(self) -> list[AcceptTest]:
        """[d] The prefix up to each draft is accepted when u is at most h."""
        return list(self._block_tests())

    def _block_tests(self) -> Iterator[AcceptTest]:
        ended = False
        for step, draft in enumerate(self.drafts):
            ended |= bool(draft < 0)
            if ended:
                yield AcceptTest.exact(accepted=False)
                continue
            ratio = _exp(self.log_ratios[step])
            threshold = block_threshold(ratio, self._residual_mass(step + 1, ratio))
            yield AcceptTest.at_most(self._uniform(step), threshold)

    def _residual_mass(self, step: int, ratio: Interval) -> Interval:
        """What the next draft leaves of its row; of none, so much that h is the ratio itself."""
        if step == len(self.drafts) or self.drafts[step] < 0:
            return ratio
        logprobs = self._logprobs(step)
        if logprobs is not None:
            return residual_mass(ratio, *logprobs)
        chance = _exp(self._target_logprob(step, int(self.drafts[step])))
        return one_hot_residual_mass(ratio, chance)

    @cached_property
    def log_ratios(self) -> list[Interval]:
        """[d] log of the running joint ratio of target and drafter, after each draft."""
        ratios: list[Interval] = []
        ratio = ZERO
        for step, draft in enumerate(self.drafts):
            if draft >= 0:
                step_ratio = self._target_logprob(step, int(draft)).minus(
                    self._draft_logprob(step, int(draft))
                )
                ratio = ratio.plus(step_ratio)
                size = abs(ratio.value) + abs(step_ratio.value)
                error = 2.0 * ROUNDING * size if math.isfinite(size) else 0.0
                ratio = Interval(
                    min(ratio.value, 0.0), min(ratio.low - error, 0.0), min(ratio.high + error, 0.0)
                )
            ratios.append(ratio)
        return ratios

    @property
    def accepted_length(self) -> int:
        """How many drafts the reference accepts."""
        if self.by_block:
            accepted = (n + 1 for n, test in enumerate(self.block_tests) if test.accepted)
            return max(accepted, default=0)
        refused = (n for n in range(len(self.drafts)) if not self.test(n).accepted)
        return next(refused, len(self.drafts))

    # --- what follows them ------------------------------------------------------------------------

    def target_choice(self, step: int) -> Choice:
        """The target's largest logit in a row."""
        return Choice(self.target(step).scores())

    def successor(self, accepted: int) -> Choice:
        """The token after so many accepted drafts: recovered, or bonus after all of them."""
        if self.greedy:
            return self.target_choice(accepted)
        bonus = accepted == len(self.drafts)
        scores = self.target(accepted).scores()
        if not bonus and self.drafts[accepted] >= 0:
            scores = self._residual(accepted)
        position = self._position(accepted)
        return gumbel_max(scores, self.request.seed, position, fp64=self.call.fp64_gumbel)

    def _residual(self, step: int) -> Scores:
        logprobs = self._logprobs(step)
        if logprobs is None:
            return self.target(step).without(int(self.drafts[step])).scores()
        target, drafted = logprobs
        if self.by_block and step > 0:
            target = target.plus(self.log_ratios[step - 1], ROUNDING)
        return log_residual(target, drafted)


def _over_temperature(
    logits: np.ndarray[tuple[int], np.dtype[np.float32]], temperature: float
) -> Row:
    value = logits.astype(np.float64) / temperature
    return Row.of(value, ROUNDING * np.where(np.isfinite(value), np.abs(value), 0.0))


def _exp(logarithm: Interval) -> Interval:
    """A probability from its logarithm."""
    return Interval(
        math.exp(logarithm.value),
        math.exp(logarithm.low) * (1.0 - ROUNDING),
        min(1.0, math.exp(logarithm.high) * (1.0 + ROUNDING)),
    )
