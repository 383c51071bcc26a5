"""Judges supports and processed logits, and lets them settle what float32 leaves open.

Which of the tokens near a filter's edge were kept is vLLM's to decide; what follows from that is
not. So a row whose tokens the reference admits is judged as it was found from there on.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tprig.checkers.reference.judgement import Discrepancy, Subject
from tprig.checkers.reference.rows import Bools, Ids, Row
from tprig.checkers.reference.scope import Difference, Scope
from tprig.checkers.wording import difference, tokens


def judge_processed(scope: Scope, rows: list[Row]) -> Iterator[Discrepancy]:
    """Judge the processed logits of a request's rows, and settle those rows by them."""
    logits = scope.result.processed_logits
    if logits is None:
        return
    for step, row in enumerate(rows):
        found = logits[scope.start + step]
        scope.count(Subject.PROCESSED, ambiguous=int(row.maybe.any()))
        if (unlike := processed_difference(row, found)) is not None:
            yield scope.report(Subject.PROCESSED, step, unlike)
        rows[step] = row.settled(found > -np.inf)


def judge_supports(scope: Scope, rows: list[Row]) -> Iterator[Discrepancy]:
    """Judge the supports of a request's rows, and settle those rows by them."""
    supports = () if scope.result.supports is None else scope.result.supports[scope.index]
    for step, support in enumerate(supports[: len(rows)]):
        row = rows[step]
        scope.count(Subject.SUPPORT, ambiguous=int(row.maybe.any()))
        if (unlike := support_difference(row, support)) is not None:
            yield scope.report(Subject.SUPPORT, step, unlike)
        rows[step] = row.settled(_marked(support, len(row.kept)))


def _marked(ids: Ids, size: int) -> Bools:
    marked = np.zeros(size, dtype=np.bool_)
    marked[ids] = True
    return marked


def support_difference(row: Row, support: Ids) -> Difference | None:
    """None where the support is the tokens with a finite processed logit."""
    expected = np.flatnonzero(row.kept)
    if np.array_equal(expected, support):
        return None
    found = _marked(support, len(row.kept))
    distinct = int(found.sum()) == len(support)
    return Difference(
        f"the support {tokens(expected.tolist())}",
        f"one that {difference(expected.tolist(), support.tolist())}"
        + ("" if distinct else ", with tokens more than once"),
        ambiguous=distinct and row.admits(found),
    )


def processed_difference(row: Row, found: npt.NDArray[np.float32]) -> Difference | None:
    """What is kept or masked against the row's filters, or else the value that is furthest off."""
    kept = found > -np.inf
    if not np.array_equal(kept, row.kept):
        difference = support_difference(row, np.flatnonzero(kept))
        if difference is None or not difference.ambiguous:
            return difference
    value = found[kept].astype(np.float64)
    distance, error = np.abs(value - row.value[kept]), row.error[kept]
    off = np.where(distance <= error, -1.0, distance)
    if not len(off) or off.max() < 0.0:
        return None
    worst = int(np.argmax(off))
    token = int(np.flatnonzero(kept)[worst])
    return Difference(
        f"{float(row.value[token])!r} for token {token}",
        repr(float(found[token])),
        margin=float(distance[worst]),
        band=float(error[worst]),
    )
