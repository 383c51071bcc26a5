"""Collectives are recorded on two layers, in order, with the decisions between them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tprig_inject.recorders.collectives import SPILLED_LEAST
from tprig_inject.recorders.paths import PATHS, UNHOOKED
from tprig_inject.ring import CAPACITY
from tprig_inject.seams import COLLECTIVE_SEAMS

from tests.tprig.inject.foreign.client import Foreign
from tests.tprig.inject.test_recorders import decoded
from tprig import evidence, rings

STEPS: list[dict[str, int]] = [{"a-00000000": 5, "b-00000000": 4}, {}, {"a-00000000": 4}]
IN_STEP = 2 * (2 + 1 + 2)
"""Two all-reduces, the gather and two drafts, on two layers each."""


@pytest.fixture(scope="module")
def recorded(foreign: Foreign) -> list[evidence.RankRecord]:
    answer = foreign("collectives", "record_steps", steps=STEPS)
    assert not answer["stayed"]
    return decoded(answer["records"])


def calls(records: list[evidence.RankRecord]) -> list[evidence.Operation]:
    """The operations of all calls, in order."""
    told: dict[int, evidence.Operation] = {}
    found: list[evidence.Operation] = []
    for record in records:
        if isinstance(record, evidence.Operation):
            told[record.id] = record
        elif isinstance(record, evidence.Calls):
            assert record.first == len(found)
            found += [told[number] for number in record.operations]
    return found


def decisions(records: list[evidence.RankRecord]) -> list[evidence.Decision]:
    return [record for record in records if isinstance(record, evidence.Decision)]


def coverage(records: list[evidence.RankRecord]) -> dict[str, evidence.Coverage]:
    return {r.path: r for r in records if isinstance(r, evidence.Coverage)}


def test_every_path_has_its_seam() -> None:
    paths = {path.seam for path in PATHS}
    captures = {"graph.capture_begin", "graph.capture_end", "graph.replay"}
    assert paths | captures == set(COLLECTIVE_SEAMS)
    assert len(paths) == len(PATHS)


def test_each_collective_is_there_on_both_layers_and_the_wire_within(
    recorded: list[evidence.RankRecord],
) -> None:
    found = [(op.layer, op.kind) for op in calls(recorded)]
    reduced = [("semantic", "all_reduce"), ("wire", "all_reduce")]
    gathered = [("semantic", "all_gather"), ("wire", "all_gather")]
    step = [*reduced, *reduced, *gathered, *reduced, *reduced]
    assert found == [*step, *step]
    assert len(step) == IN_STEP
    for record in recorded:
        if isinstance(record, evidence.Calls):
            pairs = zip(record.enter_ns[::2], record.enter_ns[1::2], strict=True)
            assert all(outer <= inner for outer, inner in pairs)
            ends = zip(record.leave_ns[1::2], record.leave_ns[::2], strict=True)
            assert all(inner <= outer for inner, outer in ends)


def test_an_operation_says_what_it_is_and_who_asked(recorded: list[evidence.RankRecord]) -> None:
    semantic, wire = calls(recorded)[:2]
    assert (semantic.group, semantic.ranks) == (wire.group, wire.ranks) == ("tp:7", [4, 6])
    assert (semantic.shape, semantic.dtype, semantic.reduction) == ([4, 8], "bfloat16", "sum")
    assert (semantic.backend, wire.backend) == (None, "cpu-shm")
    assert semantic.mode == "eager"
    # vLLM's own plumbing is left out, and both layers name the same caller.
    assert semantic.location == wire.location
    assert semantic.location[0].startswith("collectives.py:execute_model:")
    assert len(semantic.location) == 4


def test_gathers_name_their_root_by_its_global_rank(foreign: Foreign) -> None:
    told = decoded(foreign("collectives", "kinds"))
    operations = [op for op in told if isinstance(op, evidence.Operation)]
    semantic = {op.kind: op for op in operations if op.layer == "semantic"}
    assert set(semantic) == {"all_reduce", "all_gather", "gather"}
    assert semantic["gather"].root == 4
    assert semantic["gather"].dtype == "int64"
    assert {op.root for op in operations if op.kind != "gather"} == {None}
    assert {op.kind for op in operations if op.layer == "wire"} == set(semantic)


def test_decisions_say_how_many_collectives_came_before(
    recorded: list[evidence.RankRecord],
) -> None:
    found = [(d.kind, d.step, d.at) for d in decisions(recorded)]
    assert found == [
        ("schedule", 0, 0),
        ("acceptance", 0, 6),
        ("draft", 0, 6),
        # The core had nothing to do, and said so.
        ("schedule", 0, IN_STEP),
        ("schedule", 1, IN_STEP),
        ("acceptance", 1, IN_STEP + 6),
        ("draft", 1, IN_STEP + 6),
    ]


def test_decisions_hold_what_ranks_must_settle_alike(recorded: list[evidence.RankRecord]) -> None:
    schedule, acceptance, draft = decisions(recorded)[:3]
    assert schedule.facts == {
        "tokens": {"a": 5, "b": 4},
        "drafts": {"a": 4, "b": 3},
        "finished": ["a", "b"],
        "preempted": [],
    }
    assert acceptance.facts == {"sampled": {"a": 2, "b": 1}, "rejected": {"a": 2, "b": 3}}
    assert draft.facts == {"run": True, "tokens": 2}


def test_calls_are_written_in_batches_and_none_before_it_has_ended(
    recorded: list[evidence.RankRecord],
) -> None:
    """Until then they are in the ring, which outlives the process."""
    chunks = [record for record in recorded if isinstance(record, evidence.Calls)]
    assert [(record.first, len(record.operations)) for record in chunks] == [(0, 2 * IN_STEP)]
    assert all(leave > 0 for leave in chunks[0].leave_ns)
    assert SPILLED_LEAST < CAPACITY
    assert SPILLED_LEAST < rings.KEPT


def test_the_coverage_names_all_paths_hooked_or_not(recorded: list[evidence.RankRecord]) -> None:
    table = coverage(recorded)
    assert set(table) == {path.seam for path in PATHS} | {u.name for u in UNHOOKED} | {
        *("graph.replay", "batch", "draft")
    }
    assert {name for name, path in table.items() if path.needed and not path.hooked} == set()
    assert all(table[path.seam].hooked for path in PATHS if not path.cuda_only)
    assert not any(table[unhooked.name].hooked for unhooked in UNHOOKED)


@pytest.mark.parametrize("seam", ["group.all_reduce", "cpu_shm.all_gather", "speculator.propose"])
def test_a_path_whose_seam_has_moved_is_left_out_and_told(foreign: Foreign, seam: str) -> None:
    answer = foreign(
        "collectives", "record_steps", steps=STEPS, seams={seam: {"parameters": ["self", "moved"]}}
    )
    assert not answer["stayed"]
    records = decoded(answer["records"])
    missing = {name for name, p in coverage(records).items() if p.needed and not p.hooked}
    assert missing == {"draft" if seam == "speculator.propose" else seam}
    # All others are recorded as before.
    assert len(calls(records)) >= IN_STEP


def test_without_the_count_of_steps_nothing_is_recorded(foreign: Foreign) -> None:
    seams = {"model_runner.execute_model": {"parameters": ["self", "moved"]}}
    answer = foreign("collectives", "record_steps", steps=STEPS, seams=seams)
    assert [record["type"] for record in answer["records"]] == ["seam"]


def test_a_call_that_raises_has_ended(foreign: Foreign) -> None:
    records = foreign("collectives", "torn")
    assert {"type": "raised", "message": "the peer is gone"} in records
    (spilled,) = (record for record in records if record["type"] == "calls")
    assert all(leave > 0 for leave in spilled["leave_ns"])


def test_a_call_that_cannot_be_told_disturbs_nothing_and_is_confessed(foreign: Foreign) -> None:
    records = foreign("collectives", "torn")
    confessed = [
        r for r in records if r["type"] == "coverage" and "could not be told" in r["detail"]
    ]
    assert [(r["path"], r["hooked"], r["needed"]) for r in confessed] == [
        ("cpu_shm.all_gather", False, True)
    ]


# --- the ring -----------------------------------------------------------------------------------


def test_a_ring_spills_before_it_would_wrap(foreign: Foreign) -> None:
    answer = foreign("collectives", "wrapped_ring", calls=11, capacity=4)
    spilled = [r for r in answer["records"] if r["type"] == "calls"]
    assert [(r["first"], len(r["operations"])) for r in spilled] == [(0, 4), (4, 4)]
    operations, _, leave_ns = answer["rows"]
    assert operations == [1, 0, 1, 0]
    # The last call was entered and never left: nothing is spilled from within it.
    assert [bool(leave) for leave in leave_ns] == [True, True, True, False]
    assert (answer["entered"], answer["left"], answer["spilled"]) == (11, 10, 8)


def test_operations_are_told_once(foreign: Foreign) -> None:
    answer = foreign("collectives", "wrapped_ring", calls=11, capacity=4)
    told = [r for r in answer["records"] if r["type"] == "operation"]
    assert [(r["id"], r["kind"]) for r in told] == [(0, "0"), (1, "1")]


# --- graphs -------------------------------------------------------------------------------------


def test_captures_before_a_run_are_templates_and_replays_are_calls(foreign: Foreign) -> None:
    records = decoded(foreign("collectives", "capture_and_replay"))
    templates = [r for r in records if isinstance(r, evidence.GraphTemplate)]
    told = {r.id: r for r in records if isinstance(r, evidence.Operation)}
    assert [t.key for t in templates] == ["graph 0", "graph 1", "graph 2"]
    shapes = [[told[number].shape for number in t.operations] for t in templates]
    assert shapes == [[[4, 8], [4, 8]], [[8, 8], [8, 8]], [[4, 8], [4, 8]]]
    assert {told[number].mode for t in templates for number in t.operations} == {"capture"}
    found = calls(records)
    assert [(op.layer, op.template) for op in found] == [
        ("graph", templates[1].digest),
        ("graph", templates[1].digest),
        ("graph", "unknown"),
        ("semantic", None),
        ("wire", None),
        ("graph", templates[2].digest),
    ]
    assert [op.mode for op in calls(records)[3:5]] == ["capture", "capture"]
    assert templates[2].digest == templates[0].digest


def test_records_follow_the_schema(foreign: Foreign) -> None:
    answer: dict[str, Any] = foreign("collectives", "record_steps", steps=STEPS)
    for record in answer["records"]:
        assert msgspec.to_builtins(msgspec.convert(record, evidence.RankRecord))
