"""Engines side by side on one template, and an engine that another thread aborts."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tprig.engine.bench import LONG, PATIENCE_S, Bench, Witness, left, order
from tprig import evidence
from tprig.engine import Deadlines, Engine, EngineError

NEVER = Deadlines(start_s=10 * PATIENCE_S, progress_s=10 * PATIENCE_S)


def serve(bench: Bench, engine: Engine) -> list[list[evidence.Row]]:
    engine.start()
    engine.run(order(engine.id))
    engine.stop()
    outputs = bench.outputs(engine.id)
    return [output.rows for output in outputs if isinstance(output, evidence.Emission)]


def test_engines_live_side_by_side(bench: Bench) -> None:
    engines = [bench.engine(1), bench.engine(2), bench.engine(1)]
    with ThreadPoolExecutor(len(engines)) as threads:
        rows = list(threads.map(lambda engine: serve(bench, engine), engines))
    assert all(left(engine) == [] for engine in engines)
    assert [bench.names(engine)[-1] for engine in engines] == ["cleaned"] * 3
    assert rows[0] == rows[2]
    tokens = [[row.token_id for step in steps for row in step] for steps in rows]
    assert sorted(tokens[0]) == sorted(tokens[1])


@pytest.mark.parametrize("tp", [1, 2])
def test_an_abort_unblocks_who_waits_for_a_run(bench: Bench, tp: int) -> None:
    engine = bench.started(tp, deadlines=NEVER)
    runs = threading.Event()
    with ThreadPoolExecutor(1) as thread, Witness(engine.processes.pids()) as witness:
        waiting = thread.submit(engine.run, order("r", LONG), lambda *_: runs.set())
        assert runs.wait(PATIENCE_S)
        engine.abort()
        with pytest.raises(EngineError, match="was aborted") as caught:
            waiting.result(PATIENCE_S)
        assert caught.value.event == "signalled"
        engine.stop()
        assert witness.living() == []
    assert left(engine) == []
    # Who aborts an engine finds no fault with it; what dies slowly is told to again.
    names = dict.fromkeys(bench.names(engine))
    assert list(names) == ["launching", "ready", "signalled", "stopped", "cleaned"]


def test_an_abort_unblocks_who_waits_for_a_start(bench: Bench) -> None:
    engine = bench.engine(2, deadlines=NEVER)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(engine.start)
        while engine.processes.host is None:
            assert not waiting.done()
            time.sleep(0.001)
        engine.abort()
        with pytest.raises(EngineError, match="was aborted"):
            waiting.result(PATIENCE_S)
        engine.stop()
    assert left(engine) == []
    assert bench.names(engine)[-2:] == ["stopped", "cleaned"]
    assert "crashed" not in bench.names(engine)


def test_an_engine_that_was_aborted_before_it_started_does_not_start(bench: Bench) -> None:
    engine = bench.engine(deadlines=NEVER)
    engine.abort()
    with pytest.raises(EngineError, match="was aborted"):
        engine.start()
    engine.stop()
    assert left(engine) == []


def test_several_engines_can_be_stopped_at_once(bench: Bench) -> None:
    engines = [bench.started(tp) for tp in (1, 2)]
    with ThreadPoolExecutor(len(engines)) as threads:
        list(threads.map(Engine.stop, engines))
    for engine in engines:
        assert bench.event(engine, "stopped").detail == "host ended with exit code 0"
        assert left(engine) == []
