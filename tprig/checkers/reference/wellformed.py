"""Whether a call and its result can be indexed at all: shapes, bounds and the layout of rows.

What is refused here never reaches arithmetic. It speaks of records, not of vLLM: a record that
contradicts itself says nothing about who is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tprig.checkers.reference.call import Request, SamplerCall, SamplerResult, Verification

_INT64 = 1 << 63


class MalformedCallError(ValueError):
    """A field of a call or of its result is out of bounds, or contradicts another one."""

    def __init__(self, field: str, expected: str, found: object) -> None:
        """State the field, what it must be and what it is."""
        super().__init__(f"{field}: expected {expected}, found {found}")
        self.field = field


def require_wellformed(call: SamplerCall, result: SamplerResult | None = None) -> None:
    """Refuse what cannot be judged.

    Raises:
        MalformedCallError: naming the first field that is out of bounds.
    """
    _shapes(call)
    _layout(call)
    _inputs(call)
    for index, request in enumerate(call.requests):
        _Fields(f"requests[{index}]", call.vocab_size).check(request)
    if result is not None:
        _result(call, result)


def _require(field: str, holds: object, expected: str, found: object) -> None:
    if not holds:
        raise MalformedCallError(field, expected, found)


def _shape(field: str, array: npt.NDArray[np.generic], *shape: int | None) -> None:
    fits = array.ndim == len(shape) and all(
        wanted is None or wanted == size for wanted, size in zip(shape, array.shape, strict=True)
    )
    wanted = ", ".join("any" if size is None else str(size) for size in shape)
    _require(field, fits, f"shape [{wanted}]", list(array.shape))


def _kind(field: str, array: npt.NDArray[np.generic], kinds: str, name: str) -> None:
    _require(field, array.dtype.kind in kinds, name, array.dtype)


def _integers(field: str, array: npt.NDArray[np.int64], low: int, high: int) -> None:
    """Every element in [low, high)."""
    _kind(field, array, "i", "signed integers")
    if array.size:
        _require(
            field,
            array.min() >= low and array.max() < high,
            f"{low} <= id < {high}",
            f"{array.min()} to {array.max()}",
        )


def _shapes(call: SamplerCall) -> None:
    _shape("logits", call.logits, None, None)
    _kind("logits", call.logits, "f", "floats")
    rows, vocab_size = call.logits.shape
    _require("logits", rows and vocab_size, "at least one row and one token", call.logits.shape)
    _require(
        "num_speculative_steps",
        call.num_speculative_steps > 0,
        "at least 1",
        call.num_speculative_steps,
    )
    _shape("cu_num_logits", call.cu_num_logits, call.num_requests + 1)
    _shape("idx_mapping", call.idx_mapping, call.num_requests)
    for name in ("input_ids", "positions", "expanded_idx_mapping", "expanded_local_pos"):
        _shape(name, getattr(call, name), rows)
        _kind(name, getattr(call, name), "i", "signed integers")
    _require(
        "max_chunk_logits",
        call.max_chunk_logits is None or call.max_chunk_logits > 0,
        "at least 1",
        call.max_chunk_logits,
    )


def _layout(call: SamplerCall) -> None:
    rows = len(call.logits)
    boundaries = call.cu_num_logits
    _integers("cu_num_logits", boundaries, 0, rows + 1)
    _require(
        "cu_num_logits",
        boundaries[0] == 0 and boundaries[-1] == rows,
        f"boundaries from 0 to {rows}",
        f"{boundaries[0]} to {boundaries[-1]}",
    )
    widths = np.diff(boundaries)
    most = call.num_speculative_steps + 1
    _require(
        "cu_num_logits",
        np.all((widths >= 1) & (widths <= most)),
        f"1 to {most} rows for each request",
        widths.tolist(),
    )
    _integers("idx_mapping", call.idx_mapping, 0, _INT64)
    _require(
        "idx_mapping",
        len(np.unique(call.idx_mapping)) == call.num_requests,
        "a slot of its own for each request",
        call.idx_mapping.tolist(),
    )
    expanded = np.repeat(call.idx_mapping, widths)
    _require(
        "expanded_idx_mapping",
        np.array_equal(call.expanded_idx_mapping, expanded),
        f"each request's slot in all of its rows, {expanded.tolist()}",
        call.expanded_idx_mapping.tolist(),
    )
    local = np.arange(rows) - np.repeat(boundaries[:-1], widths)
    _require(
        "expanded_local_pos",
        np.array_equal(call.expanded_local_pos, local),
        f"rows numbered within their requests, {local.tolist()}",
        call.expanded_local_pos.tolist(),
    )
    steps = call.positions - call.expanded_local_pos
    _integers("positions", call.positions, 0, _INT64)
    _require(
        "positions",
        np.array_equal(steps, np.repeat(steps[boundaries[:-1]], widths)),
        "consecutive positions within each request",
        call.positions.tolist(),
    )


def _inputs(call: SamplerCall) -> None:
    rows, vocab_size = call.logits.shape
    # -1 is vLLM's own placeholder for a draft that is none.
    _integers("input_ids", call.input_ids, -1, vocab_size)
    if call.draft_logits is not None:
        steps = call.num_speculative_steps
        _shape("draft_logits", call.draft_logits, call.num_requests, steps, None)
        _kind("draft_logits", call.draft_logits, "f", "floats")
        width = call.draft_logits.shape[-1]
        _require("draft_logits", 0 < width <= vocab_size, f"1 to {vocab_size} tokens", width)
        # What is in a request's first row was sampled from the target, and not drafted.
        _integers("input_ids", call.input_ids[call.expanded_local_pos > 0], -1, width)
    if call.invalid_drafts is not None:
        _shape("invalid_drafts", call.invalid_drafts, rows)
        _kind("invalid_drafts", call.invalid_drafts, "b", "booleans")
    rates = call.synthetic_rates
    synthetic = call.verification is Verification.SYNTHETIC
    _require(
        "synthetic_rates",
        (rates is not None) == synthetic,
        "rates with synthetic verification, and only then",
        rates,
    )
    if rates is not None:
        _shape("synthetic_rates", rates, call.num_speculative_steps)


class _Fields:
    """Checks the fields of one request."""

    def __init__(self, prefix: str, vocab_size: int) -> None:
        self.prefix = prefix
        self.vocab_size = vocab_size

    def check(self, request: Request) -> None:
        self._bounds("temperature", request.temperature, 0.0, math.inf)
        self._bounds("top_k", request.top_k, 1, self.vocab_size)
        self._bounds("top_p", request.top_p, 0.0, 1.0)
        self._bounds("min_p", request.min_p, 0.0, 1.0)
        self._bounds("seed", request.seed, -_INT64, _INT64 - 1)
        self._bounds("num_logprobs", request.num_logprobs, -1, self.vocab_size)
        self._penalties(request)
        for name, ids in self._token_ids(request):
            _shape(f"{self.prefix}.{name}", ids, None)
            _integers(f"{self.prefix}.{name}", ids, 0, self.vocab_size)
        self._bias(request)
        lengths = [len(word) for word in request.bad_words]
        _require(f"{self.prefix}.bad_words", all(lengths), "words of at least one token", lengths)
        self._given(
            "output_token_ids", request.output_token_ids, needed=max(lengths, default=0) > 1
        )

    def _bounds(self, name: str, value: float, low: float, high: float) -> None:
        inside = low <= value <= high and not (value == high == math.inf)
        _require(f"{self.prefix}.{name}", inside, f"{low} to {high}", value)

    def _given(self, name: str, value: object, *, needed: bool) -> None:
        _require(
            f"{self.prefix}.{name}",
            not needed or value is not None,
            "an array, since a parameter of the request needs it",
            value,
        )

    def _penalties(self, request: Request) -> None:
        self._bounds("repetition_penalty", request.repetition_penalty, 2.0**-126, math.inf)
        for name in ("frequency_penalty", "presence_penalty"):
            value = getattr(request, name)
            _require(f"{self.prefix}.{name}", math.isfinite(value), "a finite number", value)
        repeats = request.repetition_penalty != 1.0
        counts = repeats or request.frequency_penalty != 0.0 or request.presence_penalty != 0.0
        self._given("prompt_mask", request.prompt_mask, needed=repeats)
        self._given("output_counts", request.output_counts, needed=counts)
        if request.prompt_mask is not None:
            _shape(f"{self.prefix}.prompt_mask", request.prompt_mask, self.vocab_size)
            _kind(f"{self.prefix}.prompt_mask", request.prompt_mask, "b", "booleans")
        if request.output_counts is not None:
            _shape(f"{self.prefix}.output_counts", request.output_counts, self.vocab_size)
            _integers(f"{self.prefix}.output_counts", request.output_counts, 0, 1 << 31)

    def _token_ids(self, request: Request) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
        for name in ("allowed_token_ids", "bias_token_ids", "stop_token_ids", "output_token_ids"):
            if (ids := getattr(request, name)) is not None:
                yield name, ids
        for index, word in enumerate(request.bad_words):
            yield f"bad_words[{index}]", word

    def _bias(self, request: Request) -> None:
        name = f"{self.prefix}.bias"
        _require(
            name,
            (request.bias is None) == (request.bias_token_ids is None),
            "a bias for bias_token_ids, and only then",
            request.bias,
        )
        if request.bias is None or request.bias_token_ids is None:
            return
        _shape(name, request.bias, len(request.bias_token_ids))
        _kind(name, request.bias, "f", "floats")
        _require(name, np.isfinite(request.bias).all(), "finite numbers", request.bias.tolist())
        _require(
            f"{self.prefix}.bias_token_ids",
            len(np.unique(request.bias_token_ids)) == len(request.bias_token_ids),
            "each token once",
            request.bias_token_ids.tolist(),
        )


def _result(call: SamplerCall, result: SamplerResult) -> None:
    rows, vocab_size = call.logits.shape
    requests = call.num_requests
    _shape("sampled", result.sampled, requests, call.num_speculative_steps + 1)
    for name in ("sampled", "num_sampled", "num_rejected"):
        _kind(name, getattr(result, name), "i", "signed integers")
    _shape("num_sampled", result.num_sampled, requests)
    _shape("num_rejected", result.num_rejected, requests)
    ids = result.logprob_token_ids
    given = [each is not None for each in (ids, result.logprobs, result.ranks)]
    _require(
        "logprobs", all(given) or not any(given), "token ids, logprobs and ranks together", given
    )
    if ids is not None and result.logprobs is not None and result.ranks is not None:
        _shape("logprob_token_ids", ids, rows, None)
        _require("logprob_token_ids", ids.shape[1] > 0, "at least one column", ids.shape)
        _integers("logprob_token_ids", ids, 0, vocab_size)
        _shape("logprobs", result.logprobs, *ids.shape)
        _shape("ranks", result.ranks, rows)
    if result.supports is not None:
        _require(
            "supports", len(result.supports) == requests, f"{requests} lists", len(result.supports)
        )
        for index, of_request in enumerate(result.supports):
            for slot, support in enumerate(of_request):
                _integers(f"supports[{index}][{slot}]", support, 0, vocab_size)
    if result.processed_logits is not None:
        _shape("processed_logits", result.processed_logits, rows, vocab_size)
