"""Faults in the sampling masks of emitted tokens, and in the logprobs beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from tprig_inject.faults.base import Fault, Once

Alter = Callable[[Any, Once], None]
"""Alters what `GPUModelRunner.sample` returned, if there is occasion to."""


def _after_sample(alter: Alter) -> Callable[[Once], None]:
    def plant(once: Once) -> None:
        def wrap(original: Any) -> Any:
            def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
                output = original(self, *args, **kwargs)
                if not once.spent and output[0].sampling_mask_tensors is not None:
                    alter(output[0], once)
                return output

            return sample

        once.wrap("model_runner.sample", wrap)

    return plant


# --- rows of a mask ----------------------------------------------------------------------------


def shift(output: Any, once: Once) -> None:
    """One row becomes the row before it, within a request."""
    mask = output.sampling_mask_tensors
    for request, slot, row in rows(output):
        if slot and not _equal_rows(mask, row - 1, row):
            for tensor in _tensors(mask):
                tensor[row] = tensor[row - 1]
            once.strike(f"batch row {request}, slot {slot}: support of slot {slot - 1}")
            return


def swap(output: Any, once: Once) -> None:
    """The first rows of two requests change places."""
    mask = output.sampling_mask_tensors
    first = [(request, row) for request, slot, row in rows(output) if slot == 0]
    for (a, low), (b, high) in pairwise(first):
        if not _equal_rows(mask, low, high):
            for tensor in _tensors(mask):
                tensor[low], tensor[high] = tensor[high].clone(), tensor[low].clone()
            once.strike(f"batch rows {a} and {b}, slot 0: supports swapped")
            return


def rows(output: Any) -> Iterator[tuple[int, int, int]]:
    """The rows of a mask that belong to sampled tokens: batch row, slot, row of the mask."""
    each = output.sampling_mask_tensors.rows_per_request
    for request, count in enumerate(output.num_sampled.tolist()):
        yield from ((request, slot, request * each + slot) for slot in range(count))


def _tensors(mask: Any) -> tuple[Any, Any, Any]:
    return mask.token_ids, mask.packed_mask, mask.counts


def _equal_rows(mask: Any, a: int, b: int) -> bool:
    return bool((mask.packed_mask[a] == mask.packed_mask[b]).all())


def cut_first(output: Any, once: Once) -> None:
    """The emitted token is taken out of its own support."""
    mask = output.sampling_mask_tensors
    for request, slot, row in rows(output):
        width = int(mask.counts[row])
        if slot == 0 and 2 <= width <= mask.token_ids.shape[1]:
            token = int(output.sampled_token_ids[request, 0])
            _cut(mask, row, width, token)
            once.strike(f"batch row {request}, slot 0: token {token} cut")
            return


def _cut(mask: Any, row: int, width: int, token: int) -> None:
    kept = mask.token_ids[row, :width]
    kept = kept[kept != token]
    mask.token_ids[row, : width - 1] = kept
    mask.counts[row] = width - 1
    # vLLM packs a row's bits in little order: token t is bit t % 8 of byte t // 8.
    mask.packed_mask[row, token // 8] &= 0xFF ^ (1 << token % 8)


def of_draft(output: Any, once: Once) -> None:
    """An accepted token's support becomes that of a greedy drafter: the token alone."""
    mask, counts = output.sampling_mask_tensors, output.num_sampled.tolist()
    for request, slot, row in rows(output):
        if slot < counts[request] - 1 and int(mask.counts[row]) >= 2:
            token = int(output.sampled_token_ids[request, slot])
            mask.token_ids[row, 0], mask.counts[row] = token, 1
            mask.packed_mask[row] = 0
            mask.packed_mask[row, token // 8] = 1 << token % 8
            once.strike(f"batch row {request}, slot {slot}: the draft {token} alone")
            return


def _counts_stale(once: Once) -> None:
    """A row keeps the count of the step before, and behind its own end what was there then."""
    before: list[tuple[Any, Any]] = []

    def alter(output: Any, once: Once) -> None:
        mask = output.sampling_mask_tensors
        stale, before[:] = list(before), [(mask.counts.clone(), mask.token_ids.clone())]
        for request, slot, row in rows(output) if stale else ():
            token = output.sampled_token_ids[request, slot]
            if slot == 0 and _keep_stale(mask, row, stale[0], token):
                once.strike(f"batch row {request}, slot 0: as many tokens as in the step before")
                return

    _after_sample(alter)(once)


def _keep_stale(mask: Any, row: int, stale: tuple[Any, Any], token: Any) -> bool:
    """True when the row could be given its stale count, with the token still in it."""
    counts, token_ids = stale
    width = min(mask.token_ids.shape[1], token_ids.shape[1])
    now, then = int(mask.counts[row]), int(counts[row]) if row < len(counts) else 0
    if (
        now == then
        or not 0 < then <= width
        or now > width
        or token not in mask.token_ids[row, :then]
    ):
        return False
    mask.token_ids[row, now:then] = token_ids[row, now:then]
    mask.counts[row] = then
    return True


def bits_reversed(output: Any, once: Once) -> None:
    """The packed row of a wide support is read in the other order of bits."""
    import torch

    mask = output.sampling_mask_tensors
    other = torch.tensor([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], dtype=torch.uint8)
    for request, slot, row in rows(output):
        if int(mask.counts[row]) <= mask.token_ids.shape[1]:
            continue
        token = int(output.sampled_token_ids[request, slot])
        found = other.to(mask.packed_mask.device)[mask.packed_mask[row].long()]
        if int(found[token // 8]) >> token % 8 & 1 and not found.equal(mask.packed_mask[row]):
            mask.packed_mask[row] = found
            once.strike(f"batch row {request}, slot {slot}: the bits of each byte turned round")
            return


# --- what masks are taken from -----------------------------------------------------------------


def _before_last_processor(once: Once) -> None:
    """One row's support is taken from the logits before top-k and top-p."""
    early: list[Any] = []

    def wrap_filter(original: Any) -> Any:
        def apply(self: Any, logits: Any, *args: Any, **kwargs: Any) -> Any:
            early[:] = [] if once.spent else [logits.clone()]
            return original(self, logits, *args, **kwargs)

        return apply

    def wrap_mask(original: Any) -> Any:
        def from_logits(cls: Any, logits: Any, bounds: Any, *args: Any, **kwargs: Any) -> Any:
            if not once.spent and early and early[0].shape == logits.shape:
                logits = _with_early_row(logits, early.pop(), bounds.tolist(), once)
            return original(cls, logits, bounds, *args, **kwargs)

        return from_logits

    once.wrap("sampling_states.apply_top_k_top_p", wrap_filter)
    once.wrap("sampling_mask.from_logits", wrap_mask)


def _with_early_row(logits: Any, early: Any, bounds: list[int], once: Once) -> Any:
    for request, row in verified(bounds):
        if not early[row].isfinite().equal(logits[row].isfinite()):
            logits = logits.clone()
            logits[row] = early[row]
            once.strike(f"batch row {request}, slot 0: the support before top-k and top-p")
            break
    return logits


def verified(bounds: list[int]) -> Iterator[tuple[int, int]]:
    """Requests with drafts, whose first row is always sampled from: batch row, row of logits."""
    for request, (low, high) in enumerate(pairwise(bounds)):
        if high - low > 1:
            yield request, low


def _top_k_wider(once: Once) -> None:
    """The best token beyond top-k stays in one row."""

    def wrap(original: Any) -> Any:
        def apply(self: Any, logits: Any, mapping: Any, *args: Any, **kwargs: Any) -> Any:
            before = None if once.spent else logits.clone()
            output = original(self, logits, mapping, *args, **kwargs)
            if before is not None:
                _readmit(output, before, mapping.tolist(), self.top_k.np, once)
            return output

        return apply

    once.wrap("sampling_states.apply_top_k_top_p", wrap)


def _readmit(output: Any, before: Any, mapping: list[int], top_k: Any, once: Once) -> None:
    for row in _first_of_several(mapping):
        kept = output[row].isfinite()
        cut = before[row].masked_fill(kept, -float("inf"))
        if int(kept.sum()) == top_k[mapping[row]] and bool(cut.isfinite().any()):
            token = int(cut.argmax())
            output[row, token] = cut[token]
            once.strike(f"row {row} of the logits: token {token} beyond top-k kept")
            return


def _first_of_several(mapping: list[int]) -> Iterator[int]:
    """First rows of requests with drafts, by the request of each row."""
    for row, request in enumerate(mapping[:-1]):
        if mapping[row + 1] == request and (row == 0 or mapping[row - 1] != request):
            yield row


# --- from the worker to the output --------------------------------------------------------------


def _inactive_copied(once: Once) -> None:
    """A row that no token was sampled from is handed on, so that what follows moves down."""

    def wrap(original: Any) -> Any:
        def tolists(self: Any, *args: Any, **kwargs: Any) -> Any:
            lists = original(self, *args, **kwargs)
            bounds = lists.cu_num_generated_tokens
            if once.spent or bounds is None:
                return lists
            for request, (low, high) in enumerate(pairwise(bounds)):
                # One slot is free, and somebody's rows come behind it.
                if 0 < high - low < self.rows_per_request and bounds[-1] - high > 1:
                    once.strike(f"batch row {request}: slot {high - low} handed on")
                    offsets = [*lists.offsets[: high + 1], *lists.offsets[high:]]
                    return lists._replace(offsets=type_like(lists.offsets, offsets))
            return lists

        return tolists

    once.wrap("sampling_mask.tolists", wrap)


def type_like(array: Any, values: list[int]) -> Any:
    """A NumPy array of the same type."""
    import numpy as np

    return np.array(values, dtype=array.dtype)


def _lost(once: Once) -> None:
    """The mask of one emitted token never reaches the output."""

    def wrap(original: Any) -> Any:
        def slice_request(self: Any, req_idx: int, num_positions: int) -> Any:
            masks = original(self, req_idx, num_positions)
            if once.spent or num_positions < 2:
                return masks
            once.strike(f"batch row {req_idx}: first of {num_positions} masks")
            start = masks.offsets[1]
            return type(masks)(masks.token_ids[start:], masks.offsets[1:] - start)

        return slice_request

    once.wrap("sampling_mask.slice_request", wrap)


def _not_cut(once: Once) -> None:
    """A request that ends within a verification keeps the masks behind its end."""

    def wrap(original: Any) -> Any:
        def slice_request(self: Any, req_idx: int, num_positions: int) -> Any:
            bounds = self.cu_num_generated_tokens
            sampled = 0 if bounds is None else bounds[req_idx + 1] - bounds[req_idx]
            if not once.spent and 0 < num_positions < sampled:
                once.strike(f"batch row {req_idx}: {sampled} masks for {num_positions} tokens")
                num_positions = sampled
            return original(self, req_idx, num_positions)

        return slice_request

    once.wrap("sampling_mask.slice_request", wrap)


# --- logprobs beside the masks -----------------------------------------------------------------


def row_of_logprobs(output: Any) -> tuple[int, int] | None:
    """The first request that sampled a token: its batch row, and its first row of logprobs."""
    logprobs = output.logprobs_tensors
    if logprobs is None:
        return None
    bounds = logprobs.cu_num_generated_tokens
    for request, count in enumerate(output.num_sampled.tolist()):
        if count:
            return request, request if bounds is None else bounds[request]
    return None


NATS = 0.0625
"""By so much a logprob is wrong: far more than rounding explains."""


def unnormalised(output: Any, once: Once) -> None:
    """All logprobs of a row are too high by the same amount."""
    if (found := row_of_logprobs(output)) is not None:
        output.logprobs_tensors.logprobs[found[1]] += NATS
        once.strike(f"batch row {found[0]}, slot 0: logprobs raised by {NATS}")


def logprob_of_token(output: Any, once: Once) -> None:
    """The emitted token's own logprob is not the one that it has among its row's."""
    if (found := row_of_logprobs(output)) is not None:
        output.logprobs_tensors.logprobs[found[1], 0] -= NATS
        once.strike(f"batch row {found[0]}, slot 0: the token's logprob lowered by {NATS}")


def logprobs_swapped(output: Any, once: Once) -> None:
    """Two tokens of a row have each other's logprobs."""
    found = row_of_logprobs(output)
    if found is None:
        return
    pair = output.logprobs_tensors.logprobs[found[1], 1:3]
    if bool(pair.isfinite().all()) and bool(pair[0] != pair[1]):
        pair.copy_(pair.flip(0))
        once.strike(f"batch row {found[0]}, slot 0: the best two logprobs swapped")


def rank_of_token(output: Any, once: Once) -> None:
    """The emitted token's rank is one too high."""
    if (found := row_of_logprobs(output)) is not None:
        output.logprobs_tensors.selected_token_ranks[found[1]] += 1
        once.strike(f"batch row {found[0]}, slot 0: rank raised by one")


FAULTS: Mapping[str, Fault] = {
    "mask-row-shifted": Fault(
        plant=_after_sample(shift),
        resembles="a mask gathered with the row offset of another position of the same request",
        anomaly="mask.row-alignment",
    ),
    "mask-rows-swapped": Fault(
        plant=_after_sample(swap),
        resembles="masks kept in the order of the batch before it was reordered",
        anomaly="mask.row-alignment",
    ),
    "mask-inactive-row-copied": Fault(
        plant=_inactive_copied,
        resembles="fixed output slots flattened without leaving out those that are not active",
        anomaly="mask.row-alignment",
    ),
    "mask-token-cut": Fault(
        plant=_after_sample(cut_first),
        resembles="a support taken before the last logits processor re-admitted a token",
        anomaly="mask.membership",
    ),
    "mask-of-draft": Fault(
        plant=_after_sample(of_draft),
        resembles="a mask taken from the drafter's distribution instead of the target's",
        anomaly="mask.support-alignment",
    ),
    "mask-bits-reversed": Fault(
        plant=_after_sample(bits_reversed),
        resembles="the bitmask of a wide support unpacked in the other order of bits",
        anomaly="mask.support-alignment",
        workload="faults-wide",
    ),
    "mask-counts-stale": Fault(
        plant=_counts_stale,
        resembles="a persistent buffer of counts read before this step's were written",
        anomaly="mask.support-alignment",
    ),
    "mask-before-last-processor": Fault(
        plant=_before_last_processor,
        resembles="a mask taken before the last logits processor",
        anomaly="mask.support-alignment",
    ),
    "mask-lost": Fault(
        plant=_lost,
        process="core",
        resembles="a mask chunk dropped between scheduler and output processor",
        anomaly="mask.absent",
    ),
    "mask-not-cut-at-end": Fault(
        plant=_not_cut,
        process="core",
        resembles="masks of K+1 rows that are not cut where max_tokens cuts the tokens",
        anomaly="mask.absent",
    ),
    "top-k-off-by-one": Fault(
        plant=_top_k_wider,
        resembles="a comparison with the k-th logit that keeps the one after it",
        anomaly="mask.width",
    ),
    "logprobs-unnormalised": Fault(
        plant=_after_sample(unnormalised),
        resembles="logprobs gathered before the log-softmax over what top-k kept",
        anomaly="mask.normalization",
    ),
    "logprob-of-other-row": Fault(
        plant=_after_sample(logprob_of_token),
        resembles="the emitted token's logprob gathered from another row than its neighbours'",
        anomaly="output.logprobs",
    ),
    "rank-off-by-one": Fault(
        plant=_after_sample(rank_of_token),
        resembles="a rank that counts from another start than the token's own row",
        anomaly="output.ranks",
    ),
}
