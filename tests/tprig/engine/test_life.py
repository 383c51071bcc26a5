"""An engine's life: started, asked, stopped, and nothing of it left."""

from __future__ import annotations

import gc
import os

import psutil
import pytest

from tests.tprig.engine.bench import Bench, Witness, descriptors, left, order
from tprig import evidence
from tprig.engine import EngineError

LAYOUTS = [
    pytest.param(1, False, {"host", "rank0"}, id="tp1"),
    pytest.param(2, False, {"host", "rank0", "rank1"}, id="tp2"),
    pytest.param(1, True, {"host", "core", "rank0"}, id="tp1-own-core"),
    pytest.param(2, True, {"host", "core", "rank0", "rank1"}, id="tp2-own-core"),
]
MIB = 1 << 20


@pytest.mark.parametrize(("tp", "core_process", "roles"), LAYOUTS)
def test_it_serves_and_leaves_nothing(
    bench: Bench, *, tp: int, core_process: bool, roles: set[str]
) -> None:
    engine = bench.started(tp, core_process=core_process)
    assert engine.effective is not None
    assert set(engine.effective.pids) == roles
    everyone = engine.processes.pids()
    assert set(engine.effective.pids.values()) <= set(everyone)
    with Witness(everyone) as witness:
        run = engine.run(order("r"))
        assert engine.serving
        engine.stop()
        assert witness.living() == []
    assert left(engine) == []
    assert bench.names(engine) == ["launching", "ready", "stopped", "cleaned"]
    assert bench.event(engine, "ready").pids == sorted(everyone)
    assert bench.event(engine, "stopped").detail == "host ended with exit code 0"
    assert (run.complete, run.rank_streams) == (True, tp)
    history = bench.history("r")
    assert bench.rows("r") == 12
    assert sorted(history.ranks) == list(range(tp))
    assert all(stream.complete and stream.records for stream in history.ranks.values())
    assert history.run == run


def test_runs_follow_one_another_on_one_engine(bench: Bench) -> None:
    engine = bench.started()
    for run in ("first", "second"):
        engine.run(order(run))
    engine.stop()
    first, second = bench.outputs("first"), bench.outputs("second")
    assert [e.rows for e in first if isinstance(e, evidence.Emission)] == [
        e.rows for e in second if isinstance(e, evidence.Emission)
    ]


@pytest.mark.parametrize("tp", [1, 2])
def test_nothing_of_ours_stands_at_a_seam_outside_of_a_run_that_is_recorded(
    bench: Bench, tp: int
) -> None:
    """What is there after a run is the very function that was there before the first one."""
    engine = bench.started(tp)
    assert engine.describe().wrapped == []
    engine.run(order("recorded", faults={"core": ["mask-lost"]}))
    assert engine.describe().wrapped == []
    engine.run(order("bare", recorders=()))
    assert engine.describe().wrapped == []
    engine.stop()
    recorded, bare = bench.history("recorded"), bench.history("bare")
    assert all(stream.records for stream in recorded.ranks.values())
    assert [stream.records for stream in bare.ranks.values()] == [()] * tp
    assert [o.rows for o in bench.outputs("bare") if isinstance(o, evidence.Emission)] == [
        o.rows for o in bench.outputs("recorded") if isinstance(o, evidence.Emission)
    ]


def test_engines_leave_no_descriptor_and_no_memory_behind(bench: Bench) -> None:
    """Not in this process, and not in the template."""

    def held() -> tuple[list[str], list[str]]:
        gc.collect()
        pids = (os.getpid(), bench.template.pid)
        return tuple(sorted(descriptors(pid).values()) for pid in pids)  # type: ignore[return-value]

    bench.started().stop()
    before, memory_bytes = held(), psutil.Process(bench.template.pid).memory_info().rss
    for tp in (1, 2, 1, 1, 1):
        engine = bench.started(tp)
        engine.stop()
    assert held() == before
    assert psutil.Process(bench.template.pid).memory_info().rss - memory_bytes < 4 * MIB


def test_an_engine_that_was_never_started_leaves_nothing(bench: Bench) -> None:
    engine = bench.engine()
    assert left(engine) != []
    with pytest.raises(EngineError, match="was not started"):
        engine.run(order("r"))
    engine.stop()
    assert left(engine) == []
    assert bench.names(engine) == ["stopped", "cleaned"]
    assert bench.event(engine, "stopped").detail == "no process of it was started"
    assert bench.history("r").run is not None
