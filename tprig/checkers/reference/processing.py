"""Raw logits to processed logits, stage by stage, in the order of vLLM's sampler.

Allowed tokens, bias, min_tokens; penalties; bad words; temperature; min-p; top-k; top-p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tprig.checkers.reference.call import Request, SamplerCall
from tprig.checkers.reference.filters import apply_min_p, apply_top_k, apply_top_p
from tprig.checkers.reference.rows import FLOAT32_TINY, ROUNDING, Ids, Reals, Row


@dataclass(frozen=True)
class Chunk:
    """What the requests verified together decide for each other."""

    processed: bool
    """Some request needs processing: otherwise the logits stay raw, filters and all."""
    top_p: bool
    """Some request has a `top_p` below 1: then all of them go through that filter."""


class Processor:
    """Processes the rows of one well-formed call, one at a time."""

    def __init__(self, call: SamplerCall) -> None:
        self.call = call
        self.drafts = _with_placeholders(call)
        """[N] the input ids, with -1 for drafts that are placeholders."""
        invalid = call.invalid_drafts
        self.verified = self.drafts if invalid is None else np.where(invalid, -1, self.drafts)
        """[N] the same, with -1 for every draft that must be refused."""
        self._owner = np.repeat(np.arange(call.num_requests), np.diff(call.cu_num_logits))

    @cached_property
    def _chunks(self) -> list[Chunk]:
        """Of each request."""
        chunks: list[Chunk] = []
        for start, end in _boundaries(self.call):
            requests = self.call.requests[start:end]
            processed = any(needs_processing(r, self.call.vocab_size) for r in requests)
            chunk = Chunk(processed, any(r.top_p != 1.0 for r in requests))
            chunks += [chunk] * (end - start)
        return chunks

    def raw(self, row: int) -> Row:
        """The logits as they came."""
        value = self.call.logits[row].astype(np.float64)
        return Row.of(value, np.zeros_like(value))

    def processed(self, row: int) -> Row:
        """What the request's sampling parameters make of them."""
        owner = int(self._owner[row])
        request, chunk = self.call.requests[owner], self._chunks[owner]
        if not chunk.processed:
            return self.raw(row)
        stages = _Stages(self.call.logits[row])
        stages.bias(request, int(self.call.positions[row]))
        local = int(self.call.expanded_local_pos[row])
        drafted = self.drafts[row - local + 1 : row + 1]
        stages.penalties(request, drafted)
        stages.bad_words(request, drafted)
        stages.temperature(request.temperature)
        return self._filtered(Row.of(stages.value, stages.error), request, chunk)

    def _filtered(self, row: Row, request: Request, chunk: Chunk) -> Row:
        rule = self.call.tie_rule
        row = apply_min_p(row, request.min_p)
        row = apply_top_k(row, request.top_k, rule, settles=request.top_p == 1.0)
        return apply_top_p(row, request.top_p, rule) if chunk.top_p else row


def needs_processing(request: Request, vocab_size: int) -> bool:
    """Whether any parameter of the request changes logits: of a greedy one, no filter does."""
    filters = request.temperature != 0.0 and (
        request.temperature != 1.0
        or request.min_p != 0.0
        or request.top_k != vocab_size
        or request.top_p != 1.0
    )
    biases = (request.allowed_token_ids, request.bias_token_ids, request.stop_token_ids)
    return (
        filters
        or _penalised(request)
        or bool(request.bad_words)
        or any(ids is not None and len(ids) for ids in biases)
    )


def _penalised(request: Request) -> bool:
    penalties = (request.frequency_penalty, request.presence_penalty)
    return request.repetition_penalty != 1.0 or any(penalties)


def _with_placeholders(call: SamplerCall) -> Ids:
    """Nothing was drafted for a request that had not sampled past its prefill."""
    owner = np.repeat(np.arange(call.num_requests), np.diff(call.cu_num_logits))
    prefill = np.array([request.prefill_len for request in call.requests])[owner]
    local = call.expanded_local_pos
    placeholder = (local > 0) & (call.positions - local < prefill)
    return np.where(placeholder, -1, call.input_ids)


def _boundaries(call: SamplerCall) -> list[tuple[int, int]]:
    """Ranges of requests that are verified together: as many as fit, at least one."""
    boundaries, count = call.cu_num_logits, call.num_requests
    most = call.max_chunk_logits
    if most is None or len(call.logits) <= most:
        return [(0, count)]
    chunks: list[tuple[int, int]] = []
    start = 0
    while start < count:
        fitting = int(np.searchsorted(boundaries, boundaries[start] + most, side="right")) - 1
        end = min(count, max(start + 1, fitting))
        chunks.append((start, end))
        start = end
    return chunks


class _Stages:
    """One row on its way, with the error of each of its values."""

    def __init__(self, logits: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
        self.value: Reals = logits.astype(np.float64)
        self.error: Reals = np.zeros_like(self.value)

    def _round(self, touched: Ids | slice = slice(None), error: Reals | float = 0.0) -> None:
        """Account for an operation: the given error, and the rounding of its result.

        Of what is denormal in float32, an absolute error remains.
        """
        size = np.abs(self.value[touched])
        finite = np.isfinite(size)
        rounding = ROUNDING * np.where(finite, size, 0.0) + FLOAT32_TINY
        grown = self.error[touched] + error + rounding
        self.error[touched] = np.where(finite, grown, 0.0)

    def _mask(self, ids: Ids | int) -> None:
        self.value[ids] = -math.inf
        self.error[ids] = 0.0

    def bias(self, request: Request, position: int) -> None:
        """Allowed tokens, then logit bias, then min_tokens."""
        allowed = request.allowed_token_ids
        if allowed is not None and len(allowed):
            denied = np.ones(len(self.value), dtype=np.bool_)
            denied[allowed] = False
            self._mask(np.flatnonzero(denied))
        if request.bias_token_ids is not None and request.bias is not None:
            self.value[request.bias_token_ids] += request.bias.astype(np.float64)
            self._round(request.bias_token_ids)
        stops = request.stop_token_ids
        if stops is not None and len(stops) and position + 1 < request.min_len:
            self._mask_stops(stops, restore=request.restore_when_all_masked)

    def _mask_stops(self, stops: Ids, *, restore: bool) -> None:
        value, error = self.value[stops].copy(), self.error[stops].copy()
        self._mask(stops)
        if restore and not (self.value > -math.inf).any():
            self.value[stops], self.error[stops] = value, error

    def penalties(self, request: Request, drafted: Ids) -> None:
        """Repetition, then frequency, then presence; drafts before this row count as emitted."""
        if not _penalised(request) or request.output_counts is None:
            return
        counts = request.output_counts.astype(np.float64)
        np.add.at(counts, drafted[drafted >= 0], 1.0)
        emitted = np.flatnonzero(counts > 0.0)
        if request.repetition_penalty != 1.0 and request.prompt_mask is not None:
            self._repetition(np.flatnonzero(request.prompt_mask | (counts > 0.0)), request)
        for factor, times in (
            (request.frequency_penalty, counts[emitted]),
            (request.presence_penalty, np.ones(len(emitted))),
        ):
            if factor != 0.0:
                self.value[emitted] -= factor * times
                self._round(emitted, ROUNDING * np.abs(factor * times))

    def _repetition(self, seen: Ids, request: Request) -> None:
        """Divide what is positive, multiply what is not."""
        value, penalty = self.value[seen], request.repetition_penalty
        scale = np.where(value > 0.0, 1.0 / penalty, penalty)
        self.value[seen] = value * scale
        self.error[seen] *= scale
        size = np.abs(self.value[seen])
        self._round(seen, ROUNDING * np.where(np.isfinite(size), size, 0.0))

    def bad_words(self, request: Request, drafted: Ids) -> None:
        """Mask a bad word's last token where what was emitted, and drafted, ends in the rest."""
        output = request.output_token_ids
        for word in request.bad_words:
            prefix = word[:-1]
            past = drafted if output is None else np.concatenate([output, drafted])
            if len(prefix) <= len(past) and np.array_equal(past[len(past) - len(prefix) :], prefix):
                self._mask(int(word[-1]))

    def temperature(self, temperature: float) -> None:
        """Divide by it; 0 (greedy) and 1 change nothing."""
        if temperature in {0.0, 1.0}:
            return
        self.value /= temperature
        self.error /= temperature
        self._round()
