"""Supports and processed logits as they were found, against a row of the reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tprig.checkers.reference.rows import Ids, Row
from tprig.checkers.wording import difference, tokens


@dataclass(frozen=True)
class Difference:
    """Expected against found, and whether float32 explains it."""

    expected: str
    found: str
    ambiguous: bool
    margin: float | None = None
    band: float | None = None


def support_difference(row: Row, support: Ids) -> Difference | None:
    """None where the support is the tokens with a finite processed logit."""
    expected = np.flatnonzero(row.kept)
    if np.array_equal(expected, support):
        return None
    found = np.zeros(len(row.kept), dtype=np.bool_)
    found[support] = True
    distinct = int(found.sum()) == len(support)
    return Difference(
        f"the support {tokens(expected.tolist())}",
        f"one that {difference(expected.tolist(), support.tolist())}"
        + ("" if distinct else ", with tokens more than once"),
        ambiguous=distinct and bool(np.all(row.maybe | (found == row.kept))),
    )


def processed_difference(row: Row, found: npt.NDArray[np.float32]) -> Difference | None:
    """The token whose processed logit is furthest off; None where each is within its bounds."""
    value = found.astype(np.float64)
    scores = row.scores()
    within = (value >= scores.low) & (value <= scores.high)
    within |= (value == -np.inf) & (scores.low == -np.inf)
    # Between "masked" and "kept" there is nothing.
    torn = row.maybe & (value > -np.inf) & (np.abs(value - row.value) > row.error)
    within &= ~torn
    if within.all():
        return None
    off = np.where(within, -1.0, np.nan_to_num(np.abs(value - row.nominal()), nan=np.inf))
    token = int(np.argmax(off))
    return Difference(
        f"{row.nominal()[token]!r} for token {token}",
        repr(float(value[token])),
        ambiguous=False,
        margin=float(off[token]),
        band=float(row.error[token]),
    )
