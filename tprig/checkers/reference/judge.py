"""Judges what one call of vLLM's rejection sampler returned against the reference."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from tprig.checkers.reference.call import LogprobsMode, SamplerCall, SamplerResult
from tprig.checkers.reference.choice import Choice
from tprig.checkers.reference.judgement import Discrepancy, Judgement, Subject
from tprig.checkers.reference.processing import Processor
from tprig.checkers.reference.rows import FLOAT32_MAX
from tprig.checkers.reference.scores import ScoresOfRow
from tprig.checkers.reference.supports import processed_difference, support_difference
from tprig.checkers.reference.verification import AcceptTest, RequestVerification
from tprig.checkers.reference.wellformed import require_wellformed
from tprig.checkers.wording import counted


def judge_call(call: SamplerCall, result: SamplerResult) -> Judgement:
    """Judge everything that the result holds.

    Each request is followed along the decisions that were found, so that one wrong decision is
    reported once, and what comes after it is judged for what it is.

    Raises:
        MalformedCallError: the record cannot be indexed, or contradicts itself.
    """
    require_wellformed(call, result)
    if call.unmodelled:
        return Judgement(undecided=(f"not modelled: {', '.join(call.unmodelled)}",))
    with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
        return _Judge(call, result).judgement()


class _Judge:
    def __init__(self, call: SamplerCall, result: SamplerResult) -> None:
        self.call, self.result = call, result
        self.processor = Processor(call)
        self.judged: Counter[Subject] = Counter()
        self.ambiguous: Counter[Subject] = Counter()
        self.undecided: list[str] = []

    def judgement(self) -> Judgement:
        discrepancies = [
            each for index in range(self.call.num_requests) for each in self._request(index)
        ]
        return Judgement(
            tuple(discrepancies), dict(self.judged), dict(self.ambiguous), tuple(self.undecided)
        )

    def _request(self, index: int) -> Iterator[Discrepancy]:
        yield from (found := list(self._counts(index)))
        verification = RequestVerification(self.processor, index)
        why = _undecidable(self.call, verification, index)
        if why is not None:
            self.undecided.append(f"request {index}: {why}")
            return
        yield from _RequestJudge(self, verification, index).discrepancies(lost=bool(found))

    def _counts(self, index: int) -> Iterator[Discrepancy]:
        request = self.call.requests[index]
        start, end = (int(b) for b in self.call.cu_num_logits[index : index + 2])
        sampled = int(self.result.num_sampled[index])
        rejected = int(self.result.num_rejected[index])
        self.judged[Subject.COUNTS] += 1
        if request.seq_len < request.prefill_len:
            fits, expected = sampled == rejected == 0, "none of either during prefill"
        else:
            rows = end - start
            fits = 1 <= sampled <= rows and sampled + rejected == rows
            expected = f"1 to {rows} sampled, and the rest of {counted(rows, 'row')} rejected"
        if not fits:
            text = f"{sampled} sampled and {rejected} rejected"
            yield Discrepancy(Subject.COUNTS, index, start, expected, text, ambiguous=False)


def _undecidable(call: SamplerCall, verification: RequestVerification, index: int) -> str | None:
    """Why nothing can be said of a request's numbers; None where something can."""
    rows = slice(verification.start, verification.start + len(verification.rows))
    inputs = [call.logits[rows]]
    if call.draft_logits is not None and not verification.greedy:
        inputs.append(call.draft_logits[index, : len(verification.drafts)])
    if any(np.isnan(each).any() or np.isposinf(each).any() for each in inputs):
        return "NaN or inf among its logits"
    values = [row.value[np.isfinite(row.value)] for row in verification.rows]
    if any(np.abs(value).max(initial=0.0) >= FLOAT32_MAX for value in values):
        return "its processed logits exceed float32"
    if verification.by_block and not all(
        math.isfinite(ratio.value) for ratio in verification.log_ratios
    ):
        return "block verification of drafts that target or drafter rule out"
    return None


class _RequestJudge:
    """One request, along the decisions that were found."""

    def __init__(self, parent: _Judge, verification: RequestVerification, index: int) -> None:
        self.call, self.result = parent.call, parent.result
        self.judged, self.ambiguous = parent.judged, parent.ambiguous
        self.processor = parent.processor
        self.verification = verification
        self.index = index
        self.start = verification.start

    def discrepancies(self, *, lost: bool) -> Iterator[Discrepancy]:
        """All of them; with `lost` counts there is no telling what was sampled."""
        sampled = int(self.result.num_sampled[self.index])
        request = self.call.requests[self.index]
        if request.seq_len < request.prefill_len:
            # What was sampled is thrown away, and its count with it.
            sampled = self.verification.accepted_length + 1
        if not lost:
            yield from self._decisions(sampled - 1)
            yield from self._successor(sampled - 1)
            yield from self._supports(sampled)
        yield from self._processed()
        yield from self._scores(0 if lost else sampled)

    def _report(
        self,
        what: Subject,
        step: int,
        expected: object,
        found: object,
        margin: float | None = None,
        band: float | None = None,
        *,
        ambiguous: bool = False,
    ) -> Discrepancy:
        row = self.start + step
        return Discrepancy(
            what, self.index, row, str(expected), str(found), ambiguous, margin, band
        )

    # --- decisions --------------------------------------------------------------------------------

    def _decisions(self, accepted: int) -> Iterator[Discrepancy]:
        yield from self._prefix(accepted)
        tests = self.verification.tests
        followed = tests if self.verification.by_block else tests[: accepted + 1]
        self.judged[Subject.DECISIONS] += len(followed)
        self.ambiguous[Subject.DECISIONS] += sum(test.ambiguous for test in followed)
        expected = self.verification.accepted_length
        if self.verification.by_block:
            yield from self._block_decision(accepted, expected)
            return
        for step, test in enumerate(followed):
            if test.accepted != (step < accepted):
                yield self._decision(step, test, accepted=step < accepted)

    def _decision(self, step: int, test: AcceptTest, *, accepted: bool) -> Discrepancy:
        words = ("refused", "accepted")
        draft = int(self.verification.drafts[step])
        return self._report(
            Subject.DECISIONS,
            step,
            f"draft {draft} {words[test.accepted]}",
            words[accepted],
            test.margin,
            test.band,
            ambiguous=test.allows(accepted=accepted),
        )

    def _block_decision(self, accepted: int, expected: int) -> Iterator[Discrepancy]:
        """The longest prefix that is accepted counts, whatever the shorter ones do."""
        if accepted == expected:
            return
        tests = self.verification.tests
        step = max(accepted, expected) - 1
        possible = (accepted == 0 or tests[accepted - 1].possible) and not any(
            test.certain for test in tests[accepted:]
        )
        yield self._report(
            Subject.DECISIONS,
            step,
            f"{counted(expected, 'draft')} accepted",
            accepted,
            tests[step].margin,
            tests[step].band,
            ambiguous=possible,
        )

    def _prefix(self, accepted: int) -> Iterator[Discrepancy]:
        found = self.result.sampled[self.index, :accepted]
        drafts = self.verification.drafts[:accepted]
        for step in np.flatnonzero(found != drafts):
            expected = f"the accepted draft {drafts[step]}"
            yield self._report(Subject.DECISIONS, int(step), expected, found[step])

    def _successor(self, accepted: int) -> Iterator[Discrepancy]:
        choice = self.verification.successor(accepted)
        found = int(self.result.sampled[self.index, accepted])
        self.judged[Subject.TOKENS] += 1
        self.ambiguous[Subject.TOKENS] += choice.ambiguous
        if found != choice.winner:
            yield self._token(accepted, choice, found)

    def _token(self, step: int, choice: Choice, found: int) -> Discrepancy:
        kind = "bonus" if step == len(self.verification.drafts) else "recovered"
        return self._report(
            Subject.TOKENS,
            step,
            f"{kind} token {choice.winner}",
            found,
            choice.margin(found),
            choice.band(found),
            ambiguous=choice.allows(found),
        )

    # --- supports and processed logits ------------------------------------------------------------

    def _supports(self, sampled: int) -> Iterator[Discrepancy]:
        if self.result.supports is None:
            return
        supports = self.result.supports[self.index]
        if len(supports) != sampled:
            yield self._report(Subject.SUPPORT, 0, counted(sampled, "support"), f"{len(supports)}")
        for step, support in enumerate(supports[:sampled]):
            row = self.verification.rows[step]
            self.judged[Subject.SUPPORT] += 1
            self.ambiguous[Subject.SUPPORT] += bool(row.maybe.any())
            difference = support_difference(row, support)
            if difference is not None:
                yield self._report(
                    Subject.SUPPORT,
                    step,
                    difference.expected,
                    difference.found,
                    ambiguous=difference.ambiguous,
                )

    def _processed(self) -> Iterator[Discrepancy]:
        if self.result.processed_logits is None:
            return
        for step, row in enumerate(self.verification.rows):
            self.judged[Subject.PROCESSED] += 1
            found = self.result.processed_logits[self.start + step]
            difference = processed_difference(row, found)
            if difference is not None:
                yield self._report(
                    Subject.PROCESSED,
                    step,
                    difference.expected,
                    difference.found,
                    difference.margin,
                    difference.band,
                    ambiguous=difference.ambiguous,
                )

    # --- logprobs and ranks -----------------------------------------------------------------------

    def _scores(self, sampled: int) -> Iterator[Discrepancy]:
        ids, values, ranks = (
            self.result.logprob_token_ids,
            self.result.logprobs,
            self.result.ranks,
        )
        if ids is None or values is None or ranks is None:
            return
        raw = self.call.logprobs_mode in {LogprobsMode.RAW_LOGITS, LogprobsMode.RAW_LOGPROBS}
        logits = self.call.logprobs_mode in {
            LogprobsMode.RAW_LOGITS,
            LogprobsMode.PROCESSED_LOGITS,
        }
        for step, row in enumerate(self.verification.rows):
            at = self.start + step
            scores = ScoresOfRow(self.processor.raw(at) if raw else row, logits=logits)
            if step < sampled:
                yield from self._named(step, int(ids[at, 0]))
            self.judged[Subject.LOGPROBS] += ids.shape[1]
            self.judged[Subject.RANKS] += 1
            for difference in scores.differences(ids[at], values[at]):
                yield self._report(
                    Subject.LOGPROBS,
                    step,
                    difference.expected,
                    difference.found,
                    difference.margin,
                    difference.band,
                    ambiguous=difference.ambiguous,
                )
            low, expected, high = scores.rank(int(ids[at, 0]))
            self.ambiguous[Subject.RANKS] += low != high
            if int(ranks[at]) != expected:
                yield self._report(
                    Subject.RANKS,
                    step,
                    expected,
                    int(ranks[at]),
                    ambiguous=low <= int(ranks[at]) <= high,
                )

    def _named(self, step: int, token: int) -> Iterator[Discrepancy]:
        sampled = int(self.result.sampled[self.index, step])
        if token != sampled:
            expected = f"the logprob of sampled token {sampled}"
            yield self._report(Subject.LOGPROBS, step, expected, f"that of token {token}")
