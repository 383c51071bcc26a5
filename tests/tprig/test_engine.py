"""An engine whose host is the test itself: what a client makes of whatever a host says."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tprig import evidence, messages
from tprig.bundle import Writer
from tprig.engine import Deadlines, Engine, EngineError, Order
from tprig.spec import EngineSpec
from tprig.template import Child, Template

SOON_S = 0.2
PROCESS = "import os, sys; os.setsid(); print('ready', flush=True); sys.stdin.read()"
READY = {"type": "ready"}


class Host:
    """Stands for the template, and for the one host it forks: a process that does nothing."""

    pid = 4242

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._ours, self.socket = socket.socketpair()

    def fork(self, request: Mapping[str, Any]) -> Child:
        self.request = request
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        return Child(self.process.pid, self._ours)

    def exit_code(self, pid: int, timeout_s: float) -> int | None:
        assert self.process is not None
        assert pid == self.process.pid
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def ending(self, *_: object) -> str | None:
        return None

    def says(self, *messages: dict[str, Any] | bytes) -> None:
        lines = [m if isinstance(m, bytes) else json.dumps(m).encode() for m in messages]
        self.socket.sendall(b"\n".join(lines) + b"\n")

    def close(self) -> None:
        self._ours.close()
        self.socket.close()
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "bundle")


@pytest.fixture
def spec(tmp_path: Path) -> EngineSpec:
    (tmp_path / "model").mkdir()
    return EngineSpec(model=tmp_path / "model")


@pytest.fixture
def engine(host: Host, writer: Writer, spec: EngineSpec) -> Engine:
    return Engine(
        "e1",
        spec,
        template=cast("Template", host),
        writer=writer,
        deadlines=Deadlines(start_s=SOON_S, progress_s=SOON_S, stop_s=SOON_S),
    )


def described(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any field
    fields = {
        "type": "described",
        "vllm_version": "1",
        "vllm_digest": "d" * 64,
        "vllm_path": "/vllm",
        "versions": {},
        "config": {},
        "pids": {},
        "vocab_size": 8,
        "imported_files": 1,
        "seams": [],
    }
    return {**fields, **changes}


def events(writer: Writer) -> list[evidence.EngineEvent]:
    lines = (writer.root / "engines" / "e1" / "events.jsonl").read_bytes().splitlines()[1:-1]
    return [msgspec.json.decode(line, type=evidence.EngineEvent) for line in lines]


def order() -> Order:
    workload = evidence.Workload(profile="p", seed=0, vocab_size=8, requests=[])
    return Order(run="r", test="t", workload=workload)


def failure(engine: Engine, event: evidence.EventName) -> str:
    """What start says as it fails; the engine is stopped, and gone."""
    with pytest.raises(EngineError) as caught:
        engine.start()
    assert caught.value.event == event
    engine.stop()
    assert engine.processes.pids() == ()
    assert not engine.processes.footprint.runtime.exists()
    return str(caught.value)


# --- a host that says what it should not -----------------------------------------------------


@pytest.mark.parametrize("line", [b"garbage", b"{}", b'{"type":"ready","more":1}', b"\xff"])
def test_what_is_no_message_is_a_crash_in_words(engine: Engine, host: Host, line: bytes) -> None:
    host.says(line)
    told = failure(engine, "crashed")
    assert "the host sent no message: expected a message, found b" in told
    assert "Traceback" not in told


def test_a_message_out_of_turn_is_a_crash_in_words(engine: Engine, host: Host) -> None:
    host.says({"type": "done", "elapsed_ns": 1})
    assert "expected Ready, found Done" in failure(engine, "crashed")


def test_a_message_out_of_turn_in_a_run(engine: Engine, host: Host, writer: Writer) -> None:
    host.says(READY, described())
    engine.start()
    host.says({"type": "ready"})
    with pytest.raises(EngineError, match="expected Emission or Refusal, found Ready"):
        engine.run(order())
    assert not engine.serving
    engine.stop()
    assert [event.event for event in events(writer)] == [
        "launching",
        "ready",
        "crashed",
        "signalled",
        "stopped",
        "cleaned",
    ]


def test_a_refusal_is_told_in_vllm_s_words(engine: Engine, host: Host) -> None:
    host.says({"type": "refused", "error": "ValueError", "message": "no such model"})
    told = failure(engine, "refused")
    assert told == "engine e1 refused: ValueError: no such model\nsee engines/e1/logs/host.log"


def test_what_was_raised_before_is_told_too(engine: Engine, host: Host, writer: Writer) -> None:
    log = writer.path("engines/e1/logs/host.log")
    log.write_text("ValueError: the cause\nRuntimeError: it failed\n")
    host.says({"type": "refused", "error": "RuntimeError", "message": "it failed"})
    assert "RuntimeError: it failed; raised before: ValueError: the cause" in failure(
        engine, "refused"
    )


# --- a host that ends ------------------------------------------------------------------------


def test_a_host_that_only_closes_its_channel(
    engine: Engine, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tprig.engine.ENDS_S", 0.05)
    host.socket.close()
    assert "the host has closed its channel" in failure(engine, "crashed")


def test_a_host_that_ends_is_named_with_its_exit_code(engine: Engine, host: Host) -> None:
    fork = host.fork

    def forked(request: Mapping[str, Any]) -> Child:
        child = fork(request)
        assert host.process is not None
        host.process.communicate(b"")
        return child

    host.fork = forked  # type: ignore[method-assign]
    told = failure(engine, "crashed")
    assert host.process is not None
    assert f"process host (pid {host.process.pid}) ended with exit code 0" in told


def test_a_host_that_says_nothing_is_a_hang(engine: Engine, writer: Writer) -> None:
    told = failure(engine, "deadline")
    assert "hangs: waited 0.2 s for the engine to be ready; engines/e1/logs/host.log is emp" in told
    names = [event.event for event in events(writer)]
    assert names == ["launching", "deadline", "stacks", "signalled", "stopped", "cleaned"]


def test_a_host_that_takes_no_request_is_a_hang(engine: Engine, host: Host) -> None:
    host.says(READY, described())
    engine.start()
    prompt = list(range(100_000))
    sampling = evidence.Sampling(temperature=1.0, max_tokens=1, seed=0)
    requests = [
        evidence.Request(id=f"r{index}", prompt_token_ids=prompt, arrival_step=0, sampling=sampling)
        for index in range(8)
    ]
    workload = evidence.Workload(profile="p", seed=0, vocab_size=8, requests=requests)
    with pytest.raises(EngineError, match=r"hangs: a message was not taken within 0\.2 s"):
        engine.run(Order(run="r", test="t", workload=workload))
    engine.stop()
    assert engine.processes.pids() == ()


# --- stopping --------------------------------------------------------------------------------


def test_a_host_that_does_not_stop_is_signalled(engine: Engine, host: Host, writer: Writer) -> None:
    host.says(READY, described())
    engine.start()
    engine.stop()
    told = [(event.event, event.detail) for event in events(writer)][2:4]
    assert told[0] == ("signalled", "SIGINT")
    assert events(writer)[-2].detail.startswith("host ended")


def test_messages_that_keep_coming_do_not_hold_up_a_stop(engine: Engine, host: Host) -> None:
    host.says(READY, described())
    engine.start()
    host.says(*[{"type": "refusal", "request": "r", "error": "E", "message": "m"}] * 1000)
    engine.stop()
    assert engine.processes.pids() == ()


def test_what_lives_on_after_an_orderly_stop_is_a_leak(
    engine: Engine, host: Host, writer: Writer
) -> None:
    host.says(READY, described())
    engine.start()
    host.says({"type": "stopped"})
    engine.stop()
    assert host.process is not None
    names = [event.event for event in events(writer)]
    assert names[2:4] == ["stacks", "remains"]
    assert events(writer)[3].pids == [host.process.pid]
    assert names[-1] == "cleaned"


def test_what_cannot_be_removed_is_told(
    engine: Engine, host: Host, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.says(READY, described())
    engine.start()
    footprint = engine.processes.footprint
    (footprint.runtime / "file").touch()
    with monkeypatch.context() as patch:
        patch.setattr("tprig.remains.shutil.rmtree", lambda *_, **__: None)
        found = engine.stop()
    assert found.paths == (footprint.runtime / "file",)
    last = events(writer)[-1]
    assert (last.event, last.detail) == ("remains", "could not be removed")
    assert last.paths == [str(footprint.runtime / "file")]
    footprint.clear()


def test_an_interrupted_start_is_not_asked_to_stop(
    engine: Engine, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> messages.FromHost:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_expect", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.start()
    engine.stop()
    told = [(event.event, event.detail) for event in events(writer)][1:3]
    assert told == [("signalled", "SIGKILL"), ("stopped", "host ended by SIGKILL")]


# --- descriptions ----------------------------------------------------------------------------


def test_processes_are_watched_by_what_they_are(engine: Engine, host: Host) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        host.says(READY, described(pids={"rank0": worker.pid}))
        engine.start()
        (engine.processes.footprint.runtime / "endings").write_text(f"{worker.pid} -9\n")
        os.kill(worker.pid, signal.SIGKILL)
        told = rf"process rank0 .pid {worker.pid}. ended by SIGKILL"
        with pytest.raises(EngineError, match=told) as caught:
            engine.run(order())
        assert caught.value.event == "crashed"
        engine.stop()


def test_a_process_that_is_gone_before_it_can_be_watched(
    engine: Engine, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tprig.processes.EXIT_CODE_WAIT_S", 0.05)
    with subprocess.Popen(["true"]) as worker:
        worker.wait()
        host.says(READY, described(pids={"rank0": worker.pid}))
        engine.start()
        with pytest.raises(EngineError, match=rf"process rank0 .pid {worker.pid}. ended"):
            engine.run(order())
        engine.stop()


def test_the_request_says_all_that_the_host_needs(engine: Engine, host: Host) -> None:
    host.says({"type": "refused", "error": "E", "message": "m"})
    failure(engine, "refused")
    assert host.request["engine"] == "e1"
    assert host.request["engine_args"]["tensor_parallel_size"] == 1
    assert host.request["shm_prefix"].startswith("tprig-")
    assert json.loads(json.dumps(host.request)) == host.request
