"""The builder of histories: varied enough to stand for real ones, and equal for equal seeds."""

from __future__ import annotations

import msgspec

from tests.fakes import histories
from tprig import evidence
from tprig.history import RunHistory


def _calls(run: RunHistory) -> list[evidence.Verified]:
    return [
        verified
        for record in run.ranks[0].records
        if isinstance(record, evidence.Verification)
        for verified in record.requests
    ]


def _emissions(run: RunHistory) -> list[evidence.Emission]:
    assert run.outputs is not None
    return [record for record in run.outputs.records if isinstance(record, evidence.Emission)]


def test_equal_seeds_give_equal_histories() -> None:
    def written(runs: tuple[RunHistory, RunHistory]) -> bytes:
        return msgspec.json.encode([(r.outputs, r.steps, r.workload, dict(r.ranks)) for r in runs])

    assert written(histories.pair(3, tp=2)) == written(histories.pair(3, tp=2))
    assert written(histories.pair(3)) != written(histories.pair(4))


def test_off_and_on_differ_in_nothing_but_supports() -> None:
    off, on = histories.pair(3, tp=2)
    assert (off.workload, off.steps and off.steps.records) == (
        on.workload,
        on.steps and on.steps.records,
    )
    assert [s.records for s in off.ranks.values()] == [s.records for s in on.ranks.values()]
    bare = [msgspec.structs.replace(emission, supports=None) for emission in _emissions(on)]
    assert bare == _emissions(off)
    assert all(len(e.supports or ()) == len(e.rows) for e in _emissions(on))


def test_histories_are_as_varied_as_real_ones() -> None:
    runs = [histories.pair(seed)[1] for seed in range(30)]
    calls = [call for run in runs for call in _calls(run)]
    accepted = [len(call.sampled_token_ids) - 1 for call in calls if call.draft_token_ids]
    assert set(accepted) == {0, 1, 2, 3}
    assert any(call.draft_token_ids == [-1, -1, -1] for call in calls)
    assert any(not call.sampled_token_ids for call in calls)
    emissions = [emission for run in runs for emission in _emissions(run)]
    assert {e.finish_reason for e in emissions} == {None, "length", "stop"}
    rows = [row for emission in emissions for row in emission.rows]
    assert {row.finite is not None and row.finite.complete for row in rows} == {True, False}
    emitted = sum(len(emission.rows) for emission in emissions)
    assert sum(len(call.sampled_token_ids) for call in calls) > emitted


def test_what_is_built_is_what_the_schema_reads() -> None:
    _, on = histories.pair(9, requests=2, refused=1)
    assert on.outputs is not None
    assert on.engine is not None
    assert on.engine.events is not None
    streams: list[tuple[str, tuple[object, ...]]] = [
        ("outputs", on.outputs.records),
        ("rank", on.ranks[0].records),
        ("engine", on.engine.events.records),
    ]
    for name, records in streams:
        for record in records:
            text = msgspec.json.encode(record)
            assert msgspec.json.decode(text, type=evidence.STREAMS[name]) == record
