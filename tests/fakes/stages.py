"""Runs of which the stages were recorded, written out: two steps of two requests on each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from tests.fakes import histories
from tests.tprig.checkers.examples import literal
from tprig import evidence
from tprig.history import RunHistory

Edit = Callable[[evidence.RankRecord], evidence.RankRecord]
FORWARD = ("embedding", "layer.0", "layer.1", "local_logits", "gathered_logits")
TOKENS = {"a": 3, "b": 1}
"""What the model ran of each request in step 1: a verifies two drafts, b none."""


def stage(step: int, name: str, rows: Sequence[str], ordinal: int = 0) -> evidence.StageDigest:
    """A digest that follows from those of the rows."""
    return evidence.StageDigest(
        step=step,
        stage=name,
        ordinal=ordinal,
        dtype="float32",
        shape=[len(rows), 8],
        digest="-".join(rows),
        rows=list(rows),
    )


def _verified(request: str, drafts: list[int], sampled: list[int]) -> evidence.Verified:
    return evidence.Verified(
        request=request,
        draft_token_ids=drafts,
        sampled_token_ids=sampled,
        rejected=len(drafts) + 1 - len(sampled),
        scheduled=TOKENS[request],
    )


def records() -> list[evidence.RankRecord]:
    """One rank's: step 1 passes every stage, the drafter's logits last."""
    told: list[evidence.RankRecord] = [stage(0, "embedding", ["p0", "p1"])]
    told += [
        *(stage(1, name, ["r0", "r1", "r2", "r3"]) for name in FORWARD),
        stage(1, "processed_logits", ["r0", "r1"]),
        stage(1, "processed_logits", ["r2", "r3"], 1),
        stage(1, "verification", ["a", "b"]),
        evidence.Verification(
            step=1, requests=[_verified("a", [5, 9], [5, 7]), _verified("b", [], [4])]
        ),
        stage(1, "gathered_logits", ["a", "b"], 1),
        stage(1, "host_copy", ["a", "b"]),
    ]
    return told


def run(name: str, *, tp: int = 1, edits: dict[int, Edit] | None = None) -> RunHistory:
    """A run; edits change the records of a rank."""
    like = literal(name, masks=False, tp=tp)
    ranks = {}
    for rank in range(tp):
        edit = (edits or {}).get(rank, _unchanged)
        path = f"runs/{name}/ranks/rank{rank}.jsonl"
        ranks[rank] = histories.stream(path, [edit(record) for record in records()])
    return replace(like, ranks=ranks)


def _unchanged(record: evidence.RankRecord) -> evidence.RankRecord:
    return record


def changed(name: str, row: int, step: int = 1, ordinal: int = 0) -> Edit:
    """Have another number in one row of a stage, and in all that follows in the step."""
    reached = False

    def edit(record: evidence.RankRecord) -> evidence.RankRecord:
        nonlocal reached
        if not isinstance(record, evidence.StageDigest):
            return record
        here = (record.stage, record.step, record.ordinal) == (name, step, ordinal)
        if not (reached or here):
            return record
        rows = list(record.rows)
        place = row if here else len(rows) - 1
        rows[place] = f"{rows[place]}'"
        reached = True
        return msgspec.structs.replace(record, rows=rows, digest="-".join(rows))

    return edit
