"""A condition, not a recorder: lets vLLM verify no more than so many rows of logits at once.

vLLM verifies in chunks where the logits would take more than a gigabyte. What it returns must not
depend on that, so small engines are made to do it too: `chunk-rows?most=6`.
"""

from __future__ import annotations

from typing import Any

from tprig_inject.context import Context
from tprig_inject.hooks import Layer

SEAMS = ("rejection_sampler.max_chunk_logits",)


def install(context: Context, options: str = "most=8") -> None:
    """Bound the rows of a chunk for the length of the run.

    Args:
        context: the run's.
        options: `most=<rows>`.

    Raises:
        ValueError: if that is not what they are.
    """
    name, _, rows = options.partition("=")
    if name != "most" or not rows.isdecimal() or not int(rows):
        raise ValueError(f"expected most=<rows of logits>, at least 1, found {options!r}")

    def wrap(original: Any) -> Any:
        def get_max_chunk_logits(vocab_size: int) -> int:
            return min(int(rows), int(original(vocab_size)))

        return get_max_chunk_logits

    context.wrap("rejection_sampler.max_chunk_logits", Layer.RECORDER, wrap)
