"""Engines: that they lived, served and went."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes import histories
from tests.fakes.histories import event
from tests.tprig.checkers import edits
from tests.tprig.checkers.examples import OFF, ON, before_stop, with_events
from tprig.checkers.checker import Judgement
from tprig.checkers.engine import ENGINE
from tprig.evidence import EngineEvent, Refusal
from tprig.history import RunHistory

CLAIM = histories.claim("engine", {"off": "off", "on": "on"}, minima={"engines": 1})


def judged(*runs: RunHistory) -> Judgement:
    return ENGINE.function(CLAIM, {run.id: run for run in runs})


def after(*events: EngineEvent) -> Judgement:
    """The judgement of an engine to which these things happened while it served."""
    return judged(with_events(ON, before_stop(*events)))


def anomalies(judgement: Judgement) -> list[str]:
    return [found.anomaly for found in judgement.findings]


def test_sound_engines_are_counted() -> None:
    assert judged(OFF, ON) == Judgement({"engines": 2, "runs": 2})


@pytest.mark.parametrize("name", ["crashed", "lost"])
def test_a_process_that_died_is_named(name: str) -> None:
    (finding,) = after(event(name, 5, "exit code -11", pids=[101])).findings
    assert finding.anomaly == "engine.crash"
    assert "process 101" in finding.message
    assert "exit code -11" in finding.message
    assert (finding.where.file, finding.where.line) == ("engines/engine-on/events.jsonl", 4)


def test_a_hang_names_the_processes_whose_stacks_are_saved() -> None:
    (finding,) = after(
        event("deadline", 5, "no step for 60 s"),
        event("stacks", 6, "py-spy", pids=[100], paths=["stacks/100.txt"]),
        event("stacks", 7, "py-spy", pids=[101, 102], paths=["stacks/101.txt"]),
    ).findings
    assert finding.anomaly == "engine.hang"
    assert "no step for 60 s; stacks of 3 processes" in finding.message
    assert "(stacks/100.txt, stacks/101.txt)" in finding.message


def test_a_hang_without_stacks_says_so() -> None:
    (finding,) = after(event("deadline", 5, "no step for 60 s")).findings
    assert "stacks of 0 processes are saved (no file)" in finding.message


def test_what_follows_the_first_fatal_event_is_its_consequence() -> None:
    judgement = after(
        event("deadline", 5, "no step for 60 s"),
        event("signalled", 6, "SIGKILL to the group"),
        event("lost", 7, "the channel closed"),
    )
    assert anomalies(judgement) == ["engine.hang"]
    assert judgement.notes == {
        "engine-on afterwards": "lost: the channel closed",
        "engine-on signalled": "signalled: SIGKILL to the group",
    }


def test_stopping_by_force_is_a_note_and_no_finding() -> None:
    judgement = after(event("signalled", 6, "SIGKILL to the group"))
    assert judgement.findings == []
    assert judgement.notes == {"engine-on signalled": "signalled: SIGKILL to the group"}


def test_what_remains_is_a_leak_only_when_something_does() -> None:
    (finding,) = after(event("remains", 5, "after stop", pids=[102], paths=["shm/a"])).findings
    assert finding.anomaly == "engine.leak"
    assert "found process 102, shm/a" in finding.message
    assert after(event("remains", 5, "nothing")).findings == []


def test_a_device_that_is_not_as_it_was_is_a_leak_of_the_gpu() -> None:
    told = "GPU-1: 3.0 GiB in use 30 s after its users ended, for suites/test_x.py::test_y"
    (finding,) = after(event("leaked", 5, told)).findings
    assert finding.anomaly == "gpu.leak"
    assert told in finding.message
    assert after().findings == []


def test_an_engine_that_was_refused_did_not_serve() -> None:
    (finding,) = after(event("refused", 5, "ValueError: no MRV2")).findings
    assert finding.anomaly == "engine.refusal"
    assert "no MRV2" in finding.message


def test_refused_requests_are_findings_of_their_run() -> None:
    off, on = histories.pair(2, refused=2)
    found = [(f.anomaly, f.where.run, f.where.request) for f in judged(off, on).findings]
    assert found == [
        ("engine.refusal", run, request)
        for run in ("off", "on")
        for request in ("refused0", "refused1")
    ]


def test_an_engine_is_judged_once_however_many_runs_it_served() -> None:
    crashed = with_events(ON, before_stop(event("crashed", 5, "exit code 1")))
    judgement = judged(crashed, edits.replaced_engine(OFF, crashed))
    assert anomalies(judgement) == ["engine.crash"]
    assert judgement.measured == {"engines": 1, "runs": 2}


@pytest.mark.parametrize(
    "names",
    [
        ["launching", "ready"],
        ["launching", "ready", "stopped"],
        ["launching", "ready", "cleaned"],
        ["launching", "ready", "cleaned", "stopped"],
        ["stopped", "cleaned", "launching", "ready"],
        [],
    ],
)
def test_an_engine_that_was_not_shown_to_be_gone_is_missing_its_end(names: list[str]) -> None:
    judgement = judged(with_events(ON, lambda _: [event(name, 1, "") for name in names]))
    assert judgement.findings == []
    (missing,) = judgement.missing
    assert missing.startswith("engine engine-on: expected `stopped` and then `cleaned`")


def test_what_is_not_there_is_not_counted() -> None:
    bare = RunHistory(id="on")
    assert judged(bare) == Judgement({"engines": 0, "runs": 0})
    refusal = Refusal(request="a", error="ValueError", message="no")
    refusing = replace(bare, outputs=histories.stream("runs/on/outputs.jsonl", [refusal]))
    assert anomalies(judged(refusing)) == ["engine.refusal"]
