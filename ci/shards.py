"""Divides tests among steps: longest first, onto the shard that has least to do. Pure."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Mapping, Sequence

MAX_SHARDS = 32


def estimates(
    tests: Sequence[str], known: Mapping[str, float], assumed_s: float
) -> dict[str, float]:
    """Seconds that each test is expected to take; those never measured, the median of the rest.

    Where none was, each is taken to need `assumed_s`.
    """
    measured = [known[test] for test in tests if test in known]
    unknown = statistics.median(measured) if measured else assumed_s
    return {test: known.get(test, unknown) for test in tests}


def shard_count(seconds: Mapping[str, float], shard_s: float) -> int:
    """How many shards keep each near `shard_s`; never more than tests or `MAX_SHARDS`."""
    wanted = math.ceil(sum(seconds.values()) / shard_s)
    return max(1, min(wanted, len(seconds), MAX_SHARDS))


def balanced(seconds: Mapping[str, float], count: int) -> list[list[str]]:
    """Divide tests into `count` shards of near equal length.

    Longest processing time first, which is at most 4/3 of the best possible (Graham 1969). The
    same input gives the same shards; within a shard the longest test comes first.
    """
    shards: list[list[str]] = [[] for _ in range(count)]
    heap = [(0.0, index) for index in range(count)]
    for test in sorted(seconds, key=lambda test: (-seconds[test], test)):
        load, index = heapq.heappop(heap)
        shards[index].append(test)
        heapq.heappush(heap, (load + seconds[test], index))
    return shards
