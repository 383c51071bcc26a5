"""In which order the arms of each pair are measured, drawn by seed."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tprig.evidence import PairOrder

_BLOCKS: tuple[tuple[PairOrder, PairOrder], ...] = (("ab", "ba"), ("ba", "ab"))


def draw_order(pairs: int, seed: int) -> list[PairOrder]:
    """Blocks ABBA or BAAB: within each, a linear drift and an effect of coming first cancel.

    Args:
        pairs: how many; even, since a block has two.
        seed: decides which of the two each block is.

    Raises:
        ValueError: for a number of pairs that is odd, or below 4.
    """
    if pairs < 4 or pairs % 2:
        raise ValueError(
            f"expected an even number of pairs, at least 4, found {pairs}: each block has two "
            "pairs of opposite order, and an interval needs more than one block"
        )
    drawn = np.random.default_rng([seed, 0]).integers(0, len(_BLOCKS), pairs // 2)
    return [order for block in drawn for order in _BLOCKS[block]]


def draw_pairs(pairs: int, most: int, seed: int) -> list[int]:
    """The pairs in which something happens now and then: one in every ten, at least one.

    Args:
        pairs: how many there are.
        most: one in so many.
        seed: decides which.
    """
    count = max(1, pairs // most)
    drawn = np.random.default_rng([seed, 1]).choice(pairs, count, replace=False)
    return sorted(int(pair) for pair in drawn)


def signs(order: list[PairOrder]) -> list[Literal[-1, 1]]:
    """+1 for a pair that arm a began, -1 for one that arm b began."""
    return [1 if pair == "ab" else -1 for pair in order]
