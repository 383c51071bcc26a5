"""Batches and outputs as Model Runner V2 passes them around, made from lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.worker.gpu.sample.output import SamplerOutput, SamplingMaskTensors

JUNK = 0x5A
"""Fills what vLLM leaves uninitialised."""


def mask_tensors(supports: list[list[list[int]]], *, slots: int, width: int) -> Any:
    """The masks of some requests, as `SamplingMaskTensors.from_logits` would make them.

    Args:
        supports: request -> slot -> token ids.
        slots: `rows_per_request`.
        width: `max_num_kept`; a wider support is in the bitmask alone, after its first tokens.
    """
    vocab_size = 40
    rows = len(supports) * slots
    token_ids = torch.full((rows, width), JUNK, dtype=torch.int32)
    packed = torch.full((rows, vocab_size // 8), JUNK, dtype=torch.uint8)
    counts = torch.zeros(rows, dtype=torch.int32)
    for request, by_slot in enumerate(supports):
        for slot, support in enumerate(by_slot):
            row = request * slots + slot
            bits = np.zeros(vocab_size, dtype=np.uint8)
            bits[support] = 1
            packed[row] = torch.from_numpy(np.packbits(bits, bitorder="little"))
            kept = support[:width]
            token_ids[row, : len(kept)] = torch.tensor(kept, dtype=torch.int32)
            counts[row] = len(support)
    return SamplingMaskTensors(token_ids, packed, counts, vocab_size, slots)


def sampled(tokens: list[list[int]], *, slots: int, drafted: list[int], mask: Any = None) -> Any:
    """What `GPUModelRunner.sample` returns: the output, and its counts again.

    Args:
        tokens: request -> the tokens that it was given.
        slots: most tokens that one request can be given.
        drafted: request -> how many tokens were under verification.
        mask: of the output.
    """
    ids = torch.full((len(tokens), slots), JUNK, dtype=torch.int64)
    for row, given in enumerate(tokens):
        ids[row, : len(given)] = torch.tensor(given, dtype=torch.int64)
    num_sampled = torch.tensor([len(given) for given in tokens], dtype=torch.int32)
    rejected = [d + 1 - len(g) if g else 0 for d, g in zip(drafted, tokens, strict=True)]
    num_rejected = torch.tensor(rejected, dtype=torch.int32)
    output = SamplerOutput(ids, None, None, num_sampled, num_rejected, mask)
    return output, num_sampled, num_rejected


def supports_of(output: Any) -> list[list[int]]:
    """Every emitted token's support, one request after the other, as the scheduler gets them."""
    counts = output.num_sampled.numpy()
    supports: list[list[int]] = output.sampling_mask_tensors.tolists(counts).to_nested_list()
    return supports
