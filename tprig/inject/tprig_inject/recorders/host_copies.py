"""Records what each step copies from the device to the host, by shape: for counting, not timing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tprig_inject.context import Context
from tprig_inject.hooks import Layer

SEAMS = ("async_output.get_output",)

_ARRAYS = ("sampled_token_ids", "num_sampled_tokens_np", "num_nans")
_TUPLES = ("logprobs_tensors", "sampling_mask_tensors")
_BY_REQUEST = ("prompt_logprobs_dict", "prompt_token_id_logprobs_dict")


def install(context: Context) -> None:
    """Write one `host-copies` record per output that a step hands over."""
    steps = 0

    def wrap(original: Any) -> Any:
        def get_output(self: Any) -> Any:
            nonlocal steps
            # Before the original, which may take these apart.
            tensors = [_record(name, array) for name, array in _copied(self)]
            output = original(self)
            committed = int(self.num_sampled_tokens_np.sum())
            record = {"type": "host-copies", "step": steps, "tensors": tensors}
            context.write({**record, "committed": committed})
            steps += 1
            return output

        return get_output

    context.wrap("async_output.get_output", Layer.RECORDER, wrap)


def _copied(output: Any) -> Iterator[tuple[str, Any]]:
    for name in _ARRAYS:
        array = getattr(output, name, None)
        if array is not None:
            yield name, array
    for name in _TUPLES:
        yield from _members(name, getattr(output, name, None))
    for name in _BY_REQUEST:
        for value in (getattr(output, name, None) or {}).values():
            yield from _members(name, value)


def _members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every tensor of a named tuple, or the one that is given."""
    if value is None:
        return
    if not hasattr(value, "_fields"):
        yield name, value
        return
    for field in value._fields:
        member = getattr(value, field)
        if hasattr(member, "shape"):
            yield f"{name}.{field}", member


def _record(name: str, array: Any) -> dict[str, Any]:
    """Of a torch tensor or a NumPy array."""
    shape = [int(length) for length in array.shape]
    return {
        "name": name,
        "dtype": str(array.dtype).removeprefix("torch."),
        "shape": shape,
        "size_bytes": int(array.nbytes),
        "rows": shape[0] if shape else 1,
    }
