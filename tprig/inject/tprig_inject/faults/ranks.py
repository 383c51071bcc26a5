"""Faults in what a single rank does: its peers wait for what it leaves out."""

from __future__ import annotations

from typing import Any

from tprig_inject.context import Context
from tprig_inject.faults.masks import Once

RANK = 1
"""The rank in the tensor-parallel group that goes wrong."""
STEPS_BEFORE = 2
"""Steps that are left alone, so that it is known what ranks usually do."""


def gather_skipped(context: Context) -> None:
    """One rank takes its part of the first drafted logits for the whole, and gathers nothing."""
    once = Once(context, "gather-skipped")
    gathered: list[int] = []

    def wrap(original: Any) -> Any:
        def gather(self: Any, logits: Any) -> Any:
            # The first gather of a step is that of the target's logits.
            if not gathered or gathered[-1] != context.step:
                gathered.append(context.step)
                return original(self, logits)
            if once.spent or context.step < STEPS_BEFORE or _rank() != RANK:
                return original(self, logits)
            once.strike("the first gather of the drafter")
            return _repeated(logits)

        return gather

    once.wrap("logits_processor.gather", wrap)


def _rank() -> int:
    from vllm.distributed.parallel_state import get_tp_group

    return int(get_tp_group().rank_in_group)


def _repeated(logits: Any) -> Any:
    import torch
    from vllm.distributed.parallel_state import get_tp_group

    return torch.cat([logits] * get_tp_group().world_size, dim=-1)
