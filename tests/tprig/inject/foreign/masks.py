"""Looks at the three ways in which vLLM holds one support."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from tprig_inject.faults import masks
from tprig_inject.faults.base import Once

from tests.tprig.inject.foreign.sampling import mask_tensors


def cut(support: list[int], token: int) -> dict[str, Any]:
    """Cut one token out of one support; the row's `token_ids`, `count` and `bits` afterwards."""
    mask = mask_tensors([[support]], slots=1, width=6)
    context = SimpleNamespace(step=0, write=lambda _: None)
    output = SimpleNamespace(
        sampling_mask_tensors=mask,
        num_sampled=np.array([1]),
        sampled_token_ids=np.array([[token]]),
    )
    masks.cut_first(output, Once(context, "cut"))  # type: ignore[arg-type]
    count = int(mask.counts[0])
    bits = np.unpackbits(mask.packed_mask[0].numpy(), bitorder="little")
    return {
        "token_ids": mask.token_ids[0, :count].tolist(),
        "count": count,
        "bits": np.flatnonzero(bits).tolist(),
    }
