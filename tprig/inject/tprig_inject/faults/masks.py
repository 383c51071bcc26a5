"""Faults in the sampling mask of emitted tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tprig_inject.context import Context
from tprig_inject.hooks import Layer, Wrap


class Once:
    """Lets a fault strike one time per run, and tells the stream."""

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._name = name
        self.spent = False

    def wrap(self, seam: str, wrap: Wrap) -> None:
        """Put the fault in place, and note that it is.

        Raises:
            SeamMovedError: if the seam does not look as expected.
        """
        self._context.wrap(seam, Layer.FAULT, wrap)
        self._tell("armed", "")

    def strike(self, detail: str) -> None:
        """Note that the fault has altered something."""
        self.spent = True
        self._tell("struck", detail)

    def _tell(self, event: str, detail: str) -> None:
        step = self._context.step
        self._context.write(
            {
                "type": "fault",
                "name": self._name,
                "event": event,
                "step": step if step >= 0 else None,
                "detail": detail,
            }
        )


def row_shifted(context: Context) -> None:
    """One row of a mask becomes the row before it, within a request."""
    once = Once(context, "mask-row-shifted")
    _after_sample(once, lambda output: _shift_first(output, once))


def token_cut(context: Context) -> None:
    """The emitted token is taken out of its own support."""
    once = Once(context, "mask-token-cut")
    _after_sample(once, lambda output: _cut_first(output, once))


def _after_sample(once: Once, alter: Callable[[Any], None]) -> None:
    def wrap(original: Any) -> Any:
        def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(self, *args, **kwargs)
            if not once.spent and output[0].sampling_mask_tensors is not None:
                alter(output[0])
            return output

        return sample

    once.wrap("model_runner.sample", wrap)


def _shift_first(output: Any, once: Once) -> None:
    mask, counts = output.sampling_mask_tensors, output.num_sampled.tolist()
    for request, count in enumerate(counts):
        for slot in range(1, count):
            row = request * mask.rows_per_request + slot
            if not _equal_rows(mask, row - 1, row):
                for tensor in (mask.token_ids, mask.packed_mask, mask.counts):
                    tensor[row] = tensor[row - 1]
                once.strike(f"batch row {request}, slot {slot}: support of slot {slot - 1}")
                return


def _equal_rows(mask: Any, a: int, b: int) -> bool:
    return bool((mask.packed_mask[a] == mask.packed_mask[b]).all())


def _cut_first(output: Any, once: Once) -> None:
    mask, counts = output.sampling_mask_tensors, output.num_sampled.tolist()
    for request, count in enumerate(counts):
        row = request * mask.rows_per_request
        width = int(mask.counts[row]) if count else 0
        if 2 <= width <= mask.token_ids.shape[1]:
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


def lost(context: Context) -> None:
    """The mask of one emitted token never reaches the output."""
    once = Once(context, "mask-lost")

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
