"""The client of a replay: what is refused, and what becomes of a child that dies or hangs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.fakes import oracles
from tprig import evidence
from tprig.bundle import Writer, load
from tprig.history import CallHistory
from tprig.replay import ReplayError, Replays, replay, validated

PROTOCOL = """\
#!{python}
import json, os, socket, sys, time
sock = socket.socket(fileno=int(sys.argv[sys.argv.index("--socket") + 1]))
def say(**message):
    sock.sendall(json.dumps(message).encode() + b"\\n")
say(type="replayer", vllm_version="0.32.0", vllm_path="/venv/vllm", versions={{}},
    device_name="A CPU", replays_masks={masks}, top_k_ties="all", seams=[])
served = 0
for line in sock.makefile():
    request = json.loads(line)
    served += 1
    {behaviour}
    for n in range(request["repetitions"]):
        say(type="replayed", call=request["call"], arm=request["arm"], repetition=n,
            elapsed_ns=1, digests={{}}, mutated=[], kept=None)
    say(type="arm-done")
"""
"""Stands for an interpreter that runs the replaying module."""


def interpreter(folder: Path, behaviour: str = "pass", *, masks: bool = True) -> str:
    path = folder / "python"
    path.write_text(PROTOCOL.format(python=sys.executable, behaviour=behaviour, masks=masks))
    path.chmod(0o755)
    return str(path)


class Run:
    def __init__(self, folder: Path, **replays: object) -> None:
        self.call = oracles.captured()
        self.said: list[str] = []
        writer = Writer(folder / "bundle")
        how = Replays(**{"repetitions": 2, **replays})  # type: ignore[arg-type]
        calls = {self.call.id: self.call}
        self.document = replay(
            calls, folder, writer, how, "again", self.said.append, each=self.said.append
        )
        (history,) = load(writer.root).replays
        assert history.results is not None
        assert history.results.complete
        self.results = list(history.results.records)

    @property
    def failures(self) -> list[tuple[str, str]]:
        found = [r for r in self.results if isinstance(r, evidence.ReplayFailure)]
        return [(r.arm, r.error) for r in found]

    @property
    def repetitions(self) -> list[tuple[str, int]]:
        found = [r for r in self.results if isinstance(r, evidence.Replayed)]
        return [(r.arm, r.repetition) for r in found]


def test_every_repetition_of_every_arm_is_written(tmp_path: Path) -> None:
    run = Run(tmp_path, python=interpreter(tmp_path))
    assert run.failures == []
    assert run.repetitions == [("off", 0), ("off", 1), ("on", 0), ("on", 1)]
    assert run.document.planned == [evidence.PlannedCall(call=run.call.id, arms=["off", "on"])]
    assert run.document.top_k_ties == "all"
    assert any("repetition 2 took" in text for text in run.said)


def test_a_vllm_without_masks_has_no_arm_with_replay(tmp_path: Path) -> None:
    run = Run(tmp_path, python=interpreter(tmp_path, masks=False))
    assert run.repetitions == [("off", 0), ("off", 1)]
    assert run.document.planned[0].arms == ["off"]


def test_a_child_that_dies_is_told_of_and_the_next_arm_gets_another(tmp_path: Path) -> None:
    dies = "request['arm'] == 'off' and os.kill(os.getpid(), 11)"
    run = Run(tmp_path, python=interpreter(tmp_path, dies))
    assert run.failures == [("off", "crashed")]
    assert run.repetitions == [("on", 0), ("on", 1)]
    (failure,) = (r for r in run.results if isinstance(r, evidence.ReplayFailure))
    assert "SIGSEGV" in failure.message


def test_a_child_that_hangs_has_a_deadline(tmp_path: Path) -> None:
    hangs = "request['arm'] == 'off' and time.sleep(3600)"
    run = Run(tmp_path, python=interpreter(tmp_path, hangs), repetition_deadline_s=0.2)
    assert run.failures[0] == ("off", "deadline")
    assert ("on", 1) in run.repetitions


def test_nonsense_from_the_child_is_no_result(tmp_path: Path) -> None:
    talks = "say(type='ready')"
    run = Run(tmp_path, python=interpreter(tmp_path, talks))
    assert run.failures == [("off", "crashed"), ("on", "crashed")]
    assert run.repetitions == []


def test_an_interpreter_that_cannot_be_started_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="cannot be started"):
        Run(tmp_path, python=str(tmp_path / "none"))


def test_what_is_no_interpreter_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="found none: the channel was closed"):
        Run(tmp_path, python="/bin/true")


def test_an_interpreter_without_vllm_is_said_in_words(tmp_path: Path) -> None:
    path = Path(interpreter(tmp_path))
    failed = 'say(type="failed", error="ImportError", message="no vllm")'
    path.write_text(path.read_text().partition("say(type=")[0] + failed)
    with pytest.raises(ReplayError, match="vLLM cannot be imported: ImportError: no vllm"):
        Run(tmp_path, python=str(path))


# --- what is not trusted ------------------------------------------------------------------------


def test_a_record_out_of_bounds_never_reaches_a_child(tmp_path: Path) -> None:
    tensors = oracles.inputs()
    tensors["logits_indices"][2] = 10**6
    call = oracles.captured(tensors)
    with pytest.raises(ReplayError, match=f"call {call.id} is refused: logits_indices: expected"):
        replay(
            {call.id: call},
            tmp_path,
            Writer(tmp_path / "bundle"),
            Replays(python=str(tmp_path / "never started")),
            "again",
            lambda _text: None,
        )


def test_no_call_is_an_error() -> None:
    none: dict[str, CallHistory] = {}
    with pytest.raises(ReplayError, match="expected captured calls, found none"):
        validated(none)


def test_greedy_calls_are_planned_without_replay() -> None:
    tensors = oracles.inputs()
    tensors["temperature"] = np.zeros(1, dtype=np.float32)
    call = oracles.captured(tensors)
    assert validated({call.id: call}) == {call.id: ["off"]}
