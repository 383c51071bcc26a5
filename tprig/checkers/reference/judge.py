"""Judges what one call of vLLM's rejection sampler returned against the reference."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tprig.checkers.reference.call import SamplerCall, SamplerResult
from tprig.checkers.reference.decisions import judge_decisions
from tprig.checkers.reference.judgement import Discrepancy, Judgement, Subject
from tprig.checkers.reference.processing import Processor
from tprig.checkers.reference.rows import FLOAT32_MAX, Row
from tprig.checkers.reference.scope import Difference, Scope, Tally
from tprig.checkers.reference.scores import judge_scores
from tprig.checkers.reference.supports import judge_processed, judge_supports
from tprig.checkers.reference.verification import RequestVerification
from tprig.checkers.reference.wellformed import require_wellformed
from tprig.checkers.wording import counted


def judge_call(call: SamplerCall, result: SamplerResult) -> Judgement:
    """Judge everything that the result holds.

    Raises:
        MalformedCallError: the record cannot be indexed, or contradicts itself.
    """
    require_wellformed(call, result)
    if call.unmodelled:
        return Judgement(undecided=(f"not modelled: {', '.join(call.unmodelled)}",))
    tally, undecided = Tally(), list[str]()
    processor = Processor(call)
    discrepancies: list[Discrepancy] = []
    # Infinities meet in masked rows, as they do in vLLM; NaN compares as it does there.
    with np.errstate(all="ignore"):
        for index in range(call.num_requests):
            scope = Scope(call, result, index, tally)
            try:
                discrepancies += _judge_request(scope, processor)
            except _UndecidableError as error:
                undecided.append(f"request {index}: {error}")
    return Judgement(
        tuple(discrepancies), dict(tally.judged), dict(tally.ambiguous), tuple(undecided)
    )


class _UndecidableError(Exception):
    """Nothing can be said of a request's numbers, for this reason."""


def _judge_request(scope: Scope, processor: Processor) -> list[Discrepancy]:
    found = list(_counts(scope))
    lost = bool(found)
    _require_numbers(scope)
    rows = [processor.processed(row) for row in range(scope.start, scope.end)]
    _require_float32(rows)
    found += judge_processed(scope, rows)
    found += judge_supports(scope, rows)
    verification = RequestVerification(processor, scope.index, rows)
    _require_ratios(verification)
    sampled = int(scope.result.num_sampled[scope.index])
    if scope.prefilling:
        # What was sampled is thrown away, and its count with it.
        sampled = verification.accepted_length + 1
    if not lost:
        found += _one_support_each(scope, sampled)
        found += judge_decisions(scope, verification, sampled - 1)
        found += judge_scores(scope, processor, rows, sampled)
    return found


def _counts(scope: Scope) -> Iterator[Discrepancy]:
    sampled = int(scope.result.num_sampled[scope.index])
    rejected = int(scope.result.num_rejected[scope.index])
    scope.count(Subject.COUNTS)
    if scope.prefilling:
        fits, expected = sampled == rejected == 0, "none of either during prefill"
    else:
        rows = scope.end - scope.start
        fits = 1 <= sampled <= rows and sampled + rejected == rows
        expected = f"1 to {rows} sampled, and the rest of {counted(rows, 'row')} rejected"
    if not fits:
        text = f"{sampled} sampled and {rejected} rejected"
        yield scope.report(Subject.COUNTS, 0, Difference(expected, text))


def _one_support_each(scope: Scope, sampled: int) -> Iterator[Discrepancy]:
    if scope.result.supports is not None:
        supports = len(scope.result.supports[scope.index])
        if supports != sampled:
            unlike = Difference(counted(sampled, "support"), str(supports))
            yield scope.report(Subject.SUPPORT, 0, unlike)


def _require_numbers(scope: Scope) -> None:
    call, rows = scope.call, slice(scope.start, scope.end)
    inputs = [call.logits[rows]]
    if call.draft_logits is not None and scope.request.temperature != 0.0:
        inputs.append(call.draft_logits[scope.index, : scope.end - scope.start - 1])
    if any(np.isnan(each).any() or np.isposinf(each).any() for each in inputs):
        raise _UndecidableError("NaN or inf among its logits")


def _require_float32(rows: list[Row]) -> None:
    for row in rows:
        size = np.abs(row.value)
        if size[np.isfinite(size)].max(initial=0.0) >= FLOAT32_MAX:
            raise _UndecidableError("its processed logits exceed float32")


def _require_ratios(verification: RequestVerification) -> None:
    """In block verification a draft that both target and drafter rule out makes NaN.

    What becomes of that depends on the device.
    """
    if not verification.by_block:
        return
    for ratio in verification.log_ratios:
        if any(map(math.isnan, (ratio.value, ratio.low, ratio.high))):
            raise _UndecidableError("block verification of a draft that both distributions exclude")
