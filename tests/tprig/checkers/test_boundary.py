"""Where two runs part is named: the stage, the step, the rank and the request."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.fakes import stages
from tests.tprig.checkers import edits
from tprig import evidence
from tprig.checkers.boundary import digests_compared, divergence

FIRST = stages.run("first")


def test_equal_runs_do_not_part() -> None:
    second = stages.run("second")
    assert divergence(FIRST, second) is None
    digests = [r for r in stages.records() if isinstance(r, evidence.StageDigest)]
    assert digests_compared(FIRST, second) == len(digests)


@pytest.mark.parametrize(
    ("stage", "ordinal", "row", "named", "request_"),
    [
        ("embedding", 0, 0, "embedding", "a"),
        ("layer.0", 0, 2, "layer.0", "a"),
        ("layer.1", 0, 3, "layer.1", "b"),
        ("local_logits", 0, 3, "local_logits", "b"),
        ("gathered_logits", 0, 1, "gathered_logits", "a"),
        ("processed_logits", 0, 1, "processed_logits", "a"),
        ("processed_logits", 1, 0, "processed_logits", "a"),
        ("processed_logits", 1, 1, "processed_logits", "b"),
        ("verification", 0, 1, "verification", "b"),
        ("gathered_logits", 1, 1, "drafter gathered_logits", "b"),
        ("host_copy", 0, 0, "host_copy", "a"),
    ],
)
def test_the_first_stage_is_named_with_its_request(
    stage: str, ordinal: int, row: int, named: str, request_: str
) -> None:
    edit = stages.changed(stage, row, ordinal=ordinal)
    parted = divergence(FIRST, stages.run("second", edits={0: edit}))
    assert parted is not None
    assert (parted.stage, parted.step, parted.rank) == (named, 1, 0)
    assert parted.request == request_
    assert (parted.where.run, parted.where.step) == ("second", 1)


def test_the_place_is_that_of_the_digest() -> None:
    second = stages.run("second", edits={0: stages.changed("layer.1", 0)})
    parted = divergence(FIRST, second)
    assert parted is not None
    assert parted.where.line is not None
    record = second.ranks[0].records[parted.where.line - 2]
    assert isinstance(record, evidence.StageDigest)
    assert record.stage == "layer.1"


@pytest.mark.parametrize(("late", "early"), [(0, 1), (1, 0)])
def test_the_rank_that_parts_first_is_named(late: int, early: int) -> None:
    changes = {late: stages.changed("verification", 0), early: stages.changed("layer.0", 0)}
    parted = divergence(stages.run("first", tp=2), stages.run("second", tp=2, edits=changes))
    assert parted is not None
    assert (parted.stage, parted.rank) == ("layer.0", early)


def test_an_earlier_step_comes_before_an_earlier_stage() -> None:
    def edit(record: evidence.RankRecord) -> evidence.RankRecord:
        return stages.changed("embedding", 1, step=0)(record)

    parted = divergence(FIRST, stages.run("second", edits={0: edit}))
    assert parted is not None
    assert (parted.stage, parted.step) == ("embedding", 0)
    # No request sampled in that step, so that the batch is not on record.
    assert parted.request is None


def test_another_shape_is_told() -> None:
    def wider(record: evidence.RankRecord) -> evidence.RankRecord:
        if isinstance(record, evidence.StageDigest) and record.stage == "local_logits":
            return msgspec.structs.replace(record, shape=[4, 9])
        return record

    parted = divergence(FIRST, stages.run("second", edits={0: wider}))
    assert parted is not None
    assert "expected a float32 of shape [4, 8], found a float32 of shape [4, 9]" in str(parted)


def test_a_stage_that_one_run_lacks_is_a_parting_unless_its_stream_was_cut() -> None:
    whole = stages.run("second")
    kept = tuple(
        r
        for r in whole.ranks[0].records
        if not (isinstance(r, evidence.StageDigest) and r.stage == "host_copy")
    )
    lacking = replace(whole, ranks={0: replace(whole.ranks[0], records=kept)})
    parted = divergence(FIRST, lacking)
    assert parted is not None
    assert parted.stage == "host_copy"
    cut = replace(whole, ranks={0: replace(whole.ranks[0], records=kept, complete=False)})
    assert divergence(FIRST, cut) is None


def test_outputs_are_the_last_stage() -> None:
    second = edits.edit_row(stages.run("second"), "a", 2, token_id=11)
    parted = divergence(FIRST, second)
    assert parted is not None
    assert (parted.stage, parted.request, parted.where.row) == ("output", "a", 2)


def test_a_parting_in_words() -> None:
    parted = divergence(FIRST, stages.run("second", edits={0: stages.changed("layer.0", 2)}))
    assert str(parted).startswith("stage layer.0, step 1, rank 0, request a: expected digest ")
    assert str(parted).endswith("in 1 of 4 rows, first in row 2")
