"""Comparisons as a plan holds them."""

from __future__ import annotations

import msgspec

from tprig.checkers.ab.order import draw_order
from tprig.evidence import Comparison


def comparison(pairs: int = 10, seed: int = 0, **changes: object) -> Comparison:
    """A comparison of this many pairs with the usual settings, but for what is changed."""
    usual = Comparison(
        shape="c16",
        a="replay off",
        b="replay on",
        identical=False,
        seed=seed,
        order=draw_order(pairs, seed),
        warm_ups=6,
        gates=["throughput"],
        margin=0.02,
        equivalence=False,
        confidence=0.95,
        resamples=50_000,
        planted={},
        max_foreign_load=None,
        only_differs=None,
    )
    return msgspec.structs.replace(usual, **changes)
