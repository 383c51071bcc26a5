"""Processes of an engine that are killed or stopped in the middle of a run."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.tprig.engine.bench import LONG, PATIENCE_S, Bench, Witness, left, order, spec
from tprig.engine import Deadlines, Engine, EngineError, Order
from tprig.template import Template

NEVER = Deadlines(progress_s=10 * PATIENCE_S)
"""A silence that no test waits for: what is noticed before is noticed by other means."""


class Strike:
    """Sends a signal to a process once the engine has begun to serve a run.

    From then on the engine is waited for by these deadlines: an honest one may be slow.
    """

    def __init__(
        self,
        engine: Engine,
        role: str,
        number: signal.Signals,
        deadlines: Deadlines = NEVER,
    ) -> None:
        self._engine = engine
        self._role = role
        self._number = number
        self._deadlines = deadlines
        self.pid: int | None = None

    def __call__(self, *_: object) -> None:
        if self.pid is None:
            assert self._engine.effective is not None
            self.pid = self._engine.effective.pids[self._role]
            os.kill(self.pid, self._number)
            self._engine._deadlines = self._deadlines


def serves(bench: Bench, template: Template | None = None) -> bool:
    """True if the template can still be asked for an engine."""
    engine = bench.started(template=template)
    run = f"after-{engine.id}"
    complete = engine.run(order(run)).complete
    engine.stop()
    return complete


def struck(
    bench: Bench, engine: Engine, strike: Strike | None, asked: Order | None = None
) -> EngineError:
    """Run until the engine is lost, and stop it; nothing of it is left."""
    with Witness(engine.processes.pids()) as witness:
        with pytest.raises(EngineError) as caught:
            engine.run(asked or order("r", LONG), strike)
        assert not engine.serving
        engine.stop()
        assert witness.living() == []
    assert left(engine) == []
    assert bench.names(engine)[-2:] == ["stopped", "cleaned"]
    run = bench.history("r").run
    assert run is not None
    assert not run.complete
    return caught.value


KILLED = [
    pytest.param(1, False, "host", id="tp1-host"),
    pytest.param(2, False, "host", id="tp2-host"),
    pytest.param(2, False, "rank1", id="tp2-worker"),
    pytest.param(1, True, "core", id="tp1-core"),
    pytest.param(2, True, "rank0", id="tp2-own-core-worker"),
]


@pytest.mark.parametrize(("tp", "core_process", "role"), KILLED)
def test_who_was_killed_is_named_at_once(
    bench: Bench, *, tp: int, core_process: bool, role: str
) -> None:
    engine = bench.started(tp, core_process=core_process, deadlines=NEVER)
    strike = Strike(engine, role, signal.SIGKILL)
    error = struck(bench, engine, strike)
    assert error.event == "crashed"
    crashed = bench.event(engine, "crashed")
    assert f"process {role} (pid {strike.pid}) ended by SIGKILL" in crashed.detail
    assert crashed.detail in str(error)
    assert strike.pid in crashed.pids
    assert "deadline" not in bench.names(engine)
    assert bench.rows("r") > 0
    assert serves(bench)


def test_a_worker_that_crashes_leaves_its_stack(bench: Bench) -> None:
    engine = bench.started(2, deadlines=NEVER)
    strike = Strike(engine, "rank1", signal.SIGABRT)
    struck(bench, engine, strike)
    assert "ended by SIGABRT" in bench.event(engine, "crashed").detail
    saved = bench.root / "engines" / engine.id / "stacks" / f"{strike.pid}.txt"
    text = saved.read_text()
    assert text.startswith("Fatal Python error: Aborted")
    assert "worker_busy_loop" in text
    assert f"engines/{engine.id}/stacks/{strike.pid}.txt" in bench.event(engine, "stacks").paths


def test_the_template_s_end_is_the_end_of_its_engines(
    bench: Bench, model: Path, tmp_path: Path
) -> None:
    own = Template(sys.executable, None, spec(model).process_environment, tmp_path / "log")
    try:
        engine = bench.started(2, template=own, deadlines=NEVER)

        def strike(*_: object) -> None:
            if own.alive():
                os.kill(own.pid, signal.SIGKILL)
                # Its end is awaited here, so that it strikes once.
                assert own.ending(PATIENCE_S) == "ended by SIGKILL"

        with Witness(engine.processes.pids()) as witness:
            with pytest.raises(EngineError, match=f"template .pid {own.pid}. ended by SIGKILL"):
                engine.run(order("r", LONG), strike)
            engine.stop()
            assert witness.living() == []
        assert left(engine) == []
        late = bench.engine(template=own)
        with pytest.raises(EngineError, match="ended by SIGKILL") as caught:
            late.start()
        assert caught.value.event == "lost"
        late.stop()
        assert bench.names(late) == ["launching", "lost", "stopped", "cleaned"]
    finally:
        own.close()
    assert serves(bench)


STOPPED = [
    pytest.param(1, "host", id="tp1-host"),
    pytest.param(2, "rank1", id="tp2-worker"),
]


@pytest.mark.parametrize(("tp", "role"), STOPPED)
def test_a_process_that_is_stopped_is_a_hang_with_everyone_s_stacks(
    bench: Bench, tp: int, role: str
) -> None:
    engine = bench.started(tp)
    assert engine.effective is not None
    processes = set(engine.effective.pids.values())
    strike = Strike(engine, role, signal.SIGSTOP, Deadlines(progress_s=0.5))
    error = struck(bench, engine, strike)
    assert error.event == "deadline"
    names = bench.names(engine)
    assert names.index("deadline") < names.index("stacks") < names.index("signalled")
    deadline = bench.event(engine, "deadline")
    assert processes <= set(deadline.pids)
    folder = bench.root / "engines" / engine.id / "stacks"
    texts = {pid: (folder / f"{pid}.txt").read_text() for pid in processes}
    assert all("File " in text or "Thread " in text for text in texts.values()), texts
    # The stopped one could not answer: it was read from outside.
    assert strike.pid is not None
    assert "MainThread" in texts[strike.pid]
    assert bench.event(engine, "signalled").detail == "SIGKILL"
    assert serves(bench)


def test_an_idle_engine_that_is_stopped_is_killed_when_asking_does_not_help(bench: Bench) -> None:
    engine = bench.started(deadlines=Deadlines(stop_s=0.5))
    assert engine.effective is not None
    os.kill(engine.effective.pids["host"], signal.SIGSTOP)
    engine.stop()
    assert left(engine) == []
    signalled = [e.detail for e in bench.events(engine) if e.event == "signalled"]
    assert signalled == ["SIGINT", "SIGTERM", "SIGKILL"]
    assert bench.event(engine, "stopped").detail == "host ended by SIGKILL"


def test_a_host_that_ignores_what_it_is_told_is_not_waited_for_by_the_message(
    bench: Bench,
) -> None:
    """A run that was given up still sends: its messages do not prolong the wait."""
    engine = bench.started(deadlines=NEVER)

    def give_up(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(order("r", LONG), give_up)
    began_s = time.monotonic()
    engine.stop()
    assert time.monotonic() - began_s < PATIENCE_S
    assert bench.event(engine, "signalled").detail == "SIGKILL"
    assert left(engine) == []
