"""Calls that are small enough to work out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tprig.checkers.reference import Request, SamplerCall, TieRule


def request(vocab_size: int = 4, **parameters: Any) -> Request:  # noqa: ANN401 - any field
    """Temperature 1 and no filter, unless said."""
    defaults = {"temperature": 1.0, "top_k": vocab_size, "top_p": 1.0, "min_p": 0.0, "seed": 7,
                "seq_len": 10}  # fmt: skip
    return Request(**(defaults | parameters))


def call(
    logits: Sequence[Sequence[float]],
    requests: Sequence[Request],
    drafts: Sequence[Sequence[int]],
    **fields: Any,  # noqa: ANN401 - any field
) -> SamplerCall:
    """A call of requests with these drafts, whose first rows lie at position 10 each."""
    rows = [len(each) + 1 for each in drafts]
    boundaries = np.concatenate([[0], np.cumsum(rows)])
    local = np.concatenate([np.arange(count) for count in rows])
    steps = max(1, *(len(each) for each in drafts)) if len(drafts) > 1 else max(1, len(drafts[0]))
    defaults: dict[str, Any] = {
        "logits": np.array(logits, dtype=np.float32),
        "cu_num_logits": boundaries,
        "input_ids": np.concatenate([[0, *each] for each in drafts]).astype(np.int64),
        "positions": local + 10,
        "idx_mapping": np.arange(len(rows)),
        "expanded_idx_mapping": np.repeat(np.arange(len(rows)), rows),
        "expanded_local_pos": local,
        "requests": tuple(requests),
        "num_speculative_steps": steps,
        "tie_rule": TieRule.KEEP_ALL,
    }
    return SamplerCall(**(defaults | fields))
