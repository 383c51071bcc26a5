"""Calls of a real engine's rejection sampler are captured on every rank, and change nothing."""

from __future__ import annotations

from tests.fakes import oracles
from tests.tprig.engine.bench import Bench, order
from tprig import evidence
from tprig.bundle import load
from tprig.checkers.oracle import ORACLE, judged
from tprig.checkers.oracle.records import taken


def test_both_ranks_capture_the_same_and_the_engine_emits_what_it_would(bench: Bench) -> None:
    engine = bench.started(2)
    engine.run(order("plain", max_tokens=12))
    recorders = ("verification", "oracle?most=3", "chunk-rows?most=4")
    engine.run(order("captured", max_tokens=12, recorders=recorders))
    engine.stop()
    assert bench.outputs("plain") == bench.outputs("captured")
    bench.writer.seal()
    run = load(bench.root).runs["captured"]
    calls = taken(run)
    assert [(one.rank, one.record.number) for one in calls] == [
        (rank, number) for rank in (0, 1) for number in range(3)
    ]
    assert len(run.calls) == 3
    for one in calls:
        assert one.record.reason is None
        assert one.record.shard == one.record.gathered[one.rank]
        assert one.record.hidden is not None
    # Nothing is found; only that nothing was replayed is missing.
    judgement = ORACLE.function(oracles.claim(), {"run": run})
    assert judgement.findings == []
    assert judgement.measured["calls"] == 3
    assert len(judgement.missing) == 3
    assert any("chunked" in one.record.traits for one in calls)
    history = run.calls[calls[0].record.call or ""]
    assert judged.production(history, calls[0].where()).undecided == []
    assert evidence.OracleCall in {type(r) for r in run.ranks[1].records}
