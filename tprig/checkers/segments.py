"""Arithmetic over many short lists at once: each list is a segment of one flat array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tprig.evidence import Number

Floats = npt.NDArray[np.float64]
Lengths = npt.NDArray[np.intp]


def flatten(lists: Sequence[Sequence[Number]]) -> tuple[Floats, Lengths]:
    """Join lists of numbers; the words `-inf`, `inf` and `nan` become what they say.

    Returns:
        The numbers ([sum of lengths]) and the lengths ([lists]).
    """
    lengths = np.fromiter(map(len, lists), dtype=np.intp, count=len(lists))
    values = (float(number) for numbers in lists for number in numbers)
    return np.fromiter(values, np.float64, int(lengths.sum())), lengths


def sums(values: npt.NDArray[np.float64 | np.bool_], lengths: Lengths) -> Floats:
    """Sum of each segment; 0 for an empty one.

    Args:
        values: [sum of lengths].
        lengths: [segments].

    Returns:
        [segments].
    """
    if not lengths.size:
        return np.zeros(0)
    # reduceat wants every start inside the array, and answers wrongly for empty segments.
    padded = np.append(values.astype(np.float64), 0.0)
    starts = np.cumsum(lengths) - lengths
    return np.where(lengths > 0, np.add.reduceat(padded, starts), 0.0)
