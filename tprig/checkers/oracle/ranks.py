"""Whether ranks captured the same call, and if not, before, in or after the gather of logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tprig.checkers.oracle.records import Taken
from tprig.evidence import Finding, OracleCall
from tprig.history import RunHistory

AGREEMENT = "oracle.rank-agreement"
# What a difference of others follows from comes first.
_FIRST = ("input_ids", "positions", "cu_num_logits", "idx_mapping", "logits", "draft_logits")


def disagreements(run: RunHistory, calls: Sequence[Taken]) -> Iterator[Finding]:
    """Compare what the ranks of a run captured, call by call."""
    by_number: dict[int, dict[int, Taken]] = {}
    for one in calls:
        by_number.setdefault(one.record.number, {})[one.rank] = one
    for _, ranks in sorted(by_number.items()):
        first = ranks[min(ranks)]
        for rank in run.ranks:
            if rank not in ranks:
                yield _finding(f"expected rank {rank} to keep the call too, found none", first)
        yield from _gather(ranks)
        for other in ranks.values():
            if other is not first:
                yield from _pair(first, other)


def _gather(ranks: dict[int, Taken]) -> Iterator[Finding]:
    """What a rank got out of the gather must be what each rank put in."""
    for one in ranks.values():
        for part, found in enumerate(one.record.gathered):
            expected = ranks[part].record.shard if part in ranks else None
            if expected is not None and expected != found:
                yield _finding(
                    f"expected rank {part}'s logits as it gave them into the gather ({expected}), "
                    f"found {found} on rank {one.rank}",
                    one,
                )


def _pair(a: Taken, b: Taken) -> Iterator[Finding]:
    mine, theirs = a.record, b.record
    if mine.reason is not None or theirs.reason is not None or mine.call == theirs.call:
        return
    named = sorted(mine.digests.keys() | theirs.digests.keys(), key=_order)
    differing = [n for n in named if mine.digests.get(n) != theirs.digests.get(n)]
    if not differing:
        text = "its flags or requests"
    else:
        text = differing[0] + (f" and {len(differing) - 1} more" if differing[1:] else "")
    yield _finding(
        f"expected what rank {a.rank} captured ({mine.call}), found {theirs.call}: {text} "
        f"differ; {_stage(mine, theirs, differing)}",
        b,
    )


def _order(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)


def _stage(mine: OracleCall, theirs: OracleCall, differing: Sequence[str]) -> str:
    if "logits" not in differing:
        return "the logits agree"
    if mine.hidden != theirs.hidden:
        return "before the gather: the hidden states that the LM head was given differ"
    if mine.gathered != theirs.gathered:
        return "the gathered logits differ"
    return "after the gather: the gathered logits agree"


def _finding(message: str, one: Taken) -> Finding:
    return Finding(anomaly=AGREEMENT, message=message, where=one.where())
