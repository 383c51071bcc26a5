"""Recorders write what vLLM's callables were given and returned, and change nothing of it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from tprig_inject.faults import FAMILIES
from tprig_inject.recorders import RECORDERS, stages
from tprig_inject.recorders.verification import external_id
from tprig_inject.seams import SEAMS

from tests.tprig.inject.foreign.client import Foreign
from tprig import evidence

JUNK = (-1, 7_000_000)


def decoded(records: list[dict[str, Any]]) -> list[evidence.RankRecord]:
    return [msgspec.convert(record, evidence.RankRecord) for record in records]


def step(*requests: dict[str, Any], scheduled: bool = True) -> dict[str, Any]:
    return {"requests": list(requests), "scheduled": scheduled}


def request(name: str, drafts: list[int], sampled: list[int], before: int = 0) -> dict[str, Any]:
    return {"id": f"{name}-0123abcd", "drafts": drafts, "sampled": sampled, "before": before}


# --- the registry ------------------------------------------------------------------------------


def test_every_stage_of_the_schema_has_a_recorder() -> None:
    assert (
        set(stages.INSTALLERS)
        == set(stages.SEAMS)
        == {
            *("embedding", "layers", "local_logits", "gathered_logits", "processed_logits"),
            *("verification", "mask", "host_copy"),
        }
    )
    registered = {name for name in RECORDERS if name.startswith("stage:")}
    assert {f"stage:{name}" for name in stages.INSTALLERS} == registered


def test_recorders_rest_on_seams_of_the_table() -> None:
    assert {seam for recorder in RECORDERS.values() for seam in recorder.seams} <= set(SEAMS)


# --- verification ------------------------------------------------------------------------------


def test_a_verification_says_what_was_drafted_sampled_and_rejected(foreign: Foreign) -> None:
    records = foreign("recorders", "verify", steps=[
        step(
            request("all accepted", [1, 2, 3], [1, 2, 3, 4]),
            request("one accepted", [1, 2, 3], [1, 9]),
            request("no valid draft", [-1, -1, -1], [8]),
            request("first token", [], [7], before=5),
            request("prefill chunk", [], [], before=3),
        ),
    ])  # fmt: skip
    (record,) = decoded(records)
    assert isinstance(record, evidence.Verification)
    assert record.step == 0
    assert [(r.request, r.draft_token_ids, r.sampled_token_ids, r.rejected) for r in record.requests
    ] == [
        ("all accepted", [1, 2, 3], [1, 2, 3, 4], 0),
        ("one accepted", [1, 2, 3], [1, 9], 2),
        ("no valid draft", [-1, -1, -1], [8], 3),
        ("first token", [], [7], 0),
        ("prefill chunk", [], [], 0),
    ]  # fmt: skip


def test_steps_are_counted_where_tokens_are_scheduled(foreign: Foreign) -> None:
    """A call without tokens brings news of finished requests, and is no step of the model."""
    steps = [step(request("a", [], [1])), step(scheduled=False), step(request("a", [2], [2, 3]))]
    records = foreign("recorders", "verify", steps=steps)
    assert [r.step for r in decoded(records) if isinstance(r, evidence.Verification)] == [0, 1]


@pytest.mark.parametrize("seam", ["model_runner.execute_model", "model_runner.sample"])
def test_a_recorder_whose_seam_has_moved_says_so_and_records_nothing(
    foreign: Foreign, seam: str
) -> None:
    """Without the count of steps its records would be in no step, so that it rests on both."""
    seams = {seam: {"parameters": ["self", "moved"]}}
    records = foreign("recorders", "verify", steps=[step(request("a", [], [1]))], seams=seams)
    (record,) = decoded(records)
    assert isinstance(record, evidence.Seam)
    assert not record.ok
    assert "('self', 'moved'), found (self, " in record.found


@pytest.mark.parametrize(
    ("internal", "external"),
    [
        ("000_plain-0123abcd", "000_plain"),
        ("a-b-0123abcd", "a-b"),
        ("not_suffixed", "not_suffixed"),
    ],
)
def test_the_client_s_id_is_found_in_the_core_s(internal: str, external: str) -> None:
    assert external_id(internal) == external


# --- digests -----------------------------------------------------------------------------------


def test_a_digest_is_of_the_numbers_and_not_of_their_layout(foreign: Foreign) -> None:
    digests = foreign("recorders", "strides")
    others = [digests.pop("other numbers"), digests.pop("another order")]
    assert len(set(digests.values())) == 1
    assert set(others).isdisjoint(digests.values())
    assert all(re.fullmatch("[0-9a-f]{32}", digest) for digest in digests.values())


def test_dtypes_have_torch_s_names_and_shapes_are_lists(foreign: Foreign) -> None:
    names = ["float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "bool"]
    records = foreign("recorders", "dtypes", names=names)
    for name, record in records.items():
        (stage,) = decoded([record])
        assert isinstance(stage, evidence.StageDigest)
        assert (stage.dtype, stage.shape) == (name, [2, 3])
    ones = {name: record["digest"] for name, record in records.items()}
    assert ones["bool"] == ones["uint8"]
    assert len(set(ones.values())) == len(names) - 1


def test_tensors_without_elements_and_without_dimensions_have_digests(foreign: Foreign) -> None:
    empty, scalar = foreign("recorders", "empty_and_scalar")
    assert empty != scalar


@pytest.mark.parametrize(
    ("counts", "values"),
    [
        ([2, 0, 3], [0, 1, 20, 21, 22]),
        ([4, 1], [0, 1, 2, 3, 10]),
        ([9, 1], [0, 1, 2, 3, 10]),
        ([0, 0], []),
    ],
)
def test_uninitialised_memory_is_never_digested(
    foreign: Foreign, counts: list[int], values: list[int]
) -> None:
    first, second = (
        foreign("recorders", "rows_with_junk", junk=junk, counts=counts) for junk in JUNK
    )
    assert first["values"] == values
    assert first == second


# --- stages ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(foreign: Foreign) -> list[evidence.StageDigest]:
    """Two steps with every stage recorded."""
    records = decoded(
        foreign("recorders", "record_stages", names=list(stages.INSTALLERS), faults=[])
    )
    return [record for record in records if isinstance(record, evidence.StageDigest)]


def at(recorded: list[evidence.StageDigest], stage: str, step: int = 0) -> list[list[int]]:
    return [record.shape for record in recorded if (record.stage, record.step) == (stage, step)]


def test_every_stage_is_recorded_in_every_step(recorded: list[evidence.StageDigest]) -> None:
    shapes = {
        "embedding": [[2]],
        # The second layer returns a residual beside its hidden states.
        "layer.0": [[2]],
        "layer.1": [[2], [2]],
        "local_logits": [[4]],
        "gathered_logits": [[8]],
        "processed_logits": [[2], [3]],
        # Tokens then counts; supports then counts.
        "verification": [[3], [2]],
        "mask": [[6], [8]],
        "host_copy": [[3]],
    }
    assert {record.stage for record in recorded} == set(shapes)
    for stage, expected in shapes.items():
        assert at(recorded, stage, 0) == at(recorded, stage, 1) == expected


def test_ordinals_count_within_a_step(recorded: list[evidence.StageDigest]) -> None:
    by_place: dict[tuple[int, str], list[int]] = {}
    for record in recorded:
        by_place.setdefault((record.step, record.stage), []).append(record.ordinal)
    assert all(ordinals == list(range(len(ordinals))) for ordinals in by_place.values())


def test_what_is_digested_is_what_went_through(
    foreign: Foreign, recorded: list[evidence.StageDigest]
) -> None:
    digests = foreign("recorders", "digests")
    first = {(r.stage, r.ordinal): r.digest for r in recorded if r.step == 0}
    assert first["local_logits", 0] == digests["local"]
    assert first["gathered_logits", 0] == digests["gathered"]
    assert first["verification", 0] == first["host_copy", 0] == digests["verified"]
    assert first["verification", 1] == digests["num_sampled"]
    assert (first["mask", 0], first["mask", 1]) == (digests["mask"], digests["counts"])


def test_only_what_is_asked_for_is_recorded(foreign: Foreign) -> None:
    records = decoded(foreign("recorders", "record_stages", names=["mask", "layers"], faults=[]))
    stages_met = {record.stage for record in records if isinstance(record, evidence.StageDigest)}
    assert stages_met == {"mask", "layer.0", "layer.1"}


def test_rows_are_told_apart(recorded: list[evidence.StageDigest]) -> None:
    """Where a stage is flat, by the request that its numbers are of."""
    rows = {(r.stage, r.ordinal): r.rows for r in recorded if r.step == 0}
    assert len(rows["verification", 0]) == 2
    assert len(rows["mask", 0]) == 8
    assert len(rows["host_copy", 0]) == 3
    assert len(set(rows["host_copy", 0])) == 3
    assert rows["mask", 1] == rows["embedding", 0] == []


# --- one number altered ------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAMILIES["stages"])
def test_a_number_altered_at_a_stage_shows_there_first(
    foreign: Foreign, recorded: list[evidence.StageDigest], fault: str
) -> None:
    records = decoded(
        foreign("recorders", "record_stages", names=list(stages.INSTALLERS), faults=[fault])
    )
    altered = [record for record in records if isinstance(record, evidence.StageDigest)]
    assert len(altered) == len(recorded)
    first = next(b for a, b in zip(recorded, altered, strict=True) if a != b)
    assert (first.stage, first.step) == (fault.removeprefix("drift-"), 1)
    told = [record for record in records if isinstance(record, evidence.Fault)]
    assert [(record.event, record.step) for record in told] == [("armed", None), ("struck", 1)]
