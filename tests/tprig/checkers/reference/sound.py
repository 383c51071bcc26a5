"""Results that the reference itself expects: what a flawless vLLM would have returned.

A test that changes one thing about them knows that nothing else is wrong. That vLLM does return
such results is shown elsewhere (`test_agreement.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tprig.checkers.reference.call import SamplerCall, SamplerResult
from tprig.checkers.reference.processing import Processor
from tprig.checkers.reference.rows import Row
from tprig.checkers.reference.scores import LOGITS, RAW, ScoresOfRow
from tprig.checkers.reference.verification import RequestVerification


def sound_result(call: SamplerCall) -> SamplerResult:
    """The result of a call, computed by the reference."""
    with np.errstate(all="ignore"):
        return _Sound(call).result()


class _Sound:
    def __init__(self, call: SamplerCall) -> None:
        self.call, self.processor = call, Processor(call)
        rows, count = len(call.logits), call.num_requests
        self.sampled = np.full((count, call.num_speculative_steps + 1), -7, dtype=np.int64)
        self.num_sampled = np.zeros(count, dtype=np.int64)
        self.num_rejected = np.zeros(count, dtype=np.int64)
        # vLLM gives every request what the most demanding one asks for.
        self.best = max(0, *(request.num_logprobs for request in call.requests))
        self.ids = np.zeros((rows, 1 + self.best), dtype=np.int64)
        self.logprobs = np.zeros((rows, 1 + self.best), dtype=np.float32)
        self.ranks = np.zeros(rows, dtype=np.int64)
        self.processed = np.zeros(call.logits.shape, dtype=np.float32)
        self.supports: list[tuple[Any, ...]] = []

    def result(self) -> SamplerResult:
        for index in range(self.call.num_requests):
            self._request(index)
        return SamplerResult(
            self.sampled,
            self.num_sampled,
            self.num_rejected,
            self.ids,
            self.logprobs,
            self.ranks,
            tuple(self.supports) if self.call.replay else None,
            self.processed,
        )

    def _request(self, index: int) -> None:
        start, end = (int(b) for b in self.call.cu_num_logits[index : index + 2])
        rows = [self.processor.processed(row) for row in range(start, end)]
        verification = RequestVerification(self.processor, index, rows)
        accepted = verification.accepted_length
        self.sampled[index, :accepted] = verification.drafts[:accepted]
        self.sampled[index, accepted] = verification.successor(accepted).winner
        request = self.call.requests[index]
        if request.seq_len >= request.prefill_len:
            self.num_sampled[index] = accepted + 1
            self.num_rejected[index] = end - start - accepted - 1
        for step, row in enumerate(rows):
            self.processed[start + step] = row.nominal()
            if step <= accepted:
                self._scores(start + step, row, int(self.sampled[index, step]))
        self.supports.append(tuple(np.flatnonzero(row.kept) for row in rows[: accepted + 1]))

    def _scores(self, at: int, row: Row, token: int) -> None:
        mode = self.call.logprobs_mode
        scored = self.processor.raw(at) if mode in RAW else row
        scores = ScoresOfRow(scored, logits=mode in LOGITS)
        best = np.argsort(-scored.nominal(), kind="stable")[: self.best]
        self.ids[at] = [token, *best]
        self.logprobs[at] = [scores.of(int(each)).value for each in self.ids[at]]
        _, self.ranks[at], _ = scores.rank(token)
