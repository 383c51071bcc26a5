"""Who is named when several processes of an engine end at about the same time."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from tprig import processes
from tprig.processes import Processes
from tprig.template import Child, Template


class StandIn:
    """A template that knows how its one host ended."""

    pid = 1

    def __init__(self, code: int | None) -> None:
        self._code = code

    def exit_code(self, pid: int, timeout_s: float) -> int | None:
        del pid, timeout_s
        return self._code

    def ending(self, timeout_s: float) -> str | None:
        del timeout_s
        return None


@pytest.fixture
def ended() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    return process.pid


@pytest.fixture
def living() -> Iterator[int]:
    """A process that lives as long as the test."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def engine_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[int, int | None], Processes]]:
    """Makes the processes of an engine whose host is the given one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(processes, "EXIT_CODE_WAIT_S", 0.0)
    with ExitStack() as made:

        def make(host: int, code: int | None) -> Processes:
            found = Processes("e", cast("Template", StandIn(code)))
            made.callback(found.release)
            found.host = Child(host, made.enter_context(socket.socket()))
            found.watch(host, "host")
            return found

        yield make


EngineOf = Callable[[int, int | None], Processes]


def test_a_worker_that_went_with_its_host_is_not_blamed(ended: int, engine_of: EngineOf) -> None:
    """The worker's end may be seen before the host's; nobody was left to note how it ended."""
    engine = engine_of(ended, -9)
    assert engine.endings({2**22: "rank0"}) == {
        ended: f"process host (pid {ended}) ended by SIGKILL"
    }


def test_a_worker_whose_end_the_host_has_noted_is_named(ended: int, engine_of: EngineOf) -> None:
    engine = engine_of(ended, 1)
    (engine.footprint.runtime / "endings").write_text(f"{2**22} -9\n")
    assert engine.endings({2**22: "rank0"}) == {
        2**22: f"process rank0 (pid {2**22}) ended by SIGKILL"
    }


def test_a_worker_that_the_host_saw_fail_is_named_before_it(
    ended: int, engine_of: EngineOf
) -> None:
    """The host goes because of it, and may be gone by the time that anybody looks."""
    engine = engine_of(ended, 1)
    engine.watch(2**22, "rank0")
    engine.watch(2**22 + 1, "rank1")
    (engine.footprint.runtime / "endings").write_text(f"{2**22} 0\n{2**22 + 1} -6\n")
    assert list(engine.endings({ended: "host"}).items()) == [
        (2**22 + 1, f"process rank1 (pid {2**22 + 1}) ended by SIGABRT"),
        (ended, f"process host (pid {ended}) ended with exit code 1"),
    ]


def test_a_worker_that_ended_in_order_is_not_blamed(living: int, engine_of: EngineOf) -> None:
    """It went because another one was killed."""
    engine = engine_of(living, None)
    (engine.footprint.runtime / "endings").write_text(f"{2**22} 0\n{2**22 + 1} -9\n")
    dead = {2**22: "rank0", 2**22 + 1: "rank1"}
    assert list(engine.endings(dead)) == [2**22 + 1]
    assert list(engine.endings({2**22: "rank0"})) == [2**22]


def test_a_worker_whose_host_lives_is_named_though_nobody_knows_how_it_ended(
    living: int, engine_of: EngineOf
) -> None:
    engine = engine_of(living, None)
    assert engine.endings({2**22: "rank0"}) == {2**22: f"process rank0 (pid {2**22}) ended"}
