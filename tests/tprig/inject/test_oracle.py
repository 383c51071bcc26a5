"""Calls of vLLM's own rejection sampler, captured and run again: bit for bit, faults found."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.numpy import load_file, save_file
from tprig_inject.oracle.choice import Choice, ChoiceError, parse
from tprig_inject.oracle.faults import FAULTS

from tests.fakes import histories, oracles
from tests.tprig.inject.foreign.client import Foreign
from tprig import evidence
from tprig.bundle.tensors import read_tensors
from tprig.checkers.oracle import ORACLE, judged
from tprig.checkers.oracle.bounds import arms, require_bounds
from tprig.checkers.oracle.records import call_id, changed, taken
from tprig.checkers.verdict import judge_claim
from tprig.evidence import Finding
from tprig.export import export
from tprig.history import CallHistory, ReplayHistory, RunHistory

CALLS = [
    {"seed": 1, "greedy": False, "probabilistic": False, "replay": True},
    {"seed": 2, "greedy": True, "probabilistic": False, "replay": False},
    {"seed": 3, "greedy": False, "probabilistic": True, "replay": False},
    {"seed": 4, "greedy": False, "probabilistic": True, "replay": True},
]


class Captured:
    """What one run of the recorder left in a folder."""

    def __init__(self, folder: Path, answer: dict[str, Any]) -> None:
        self.folder = folder
        self.same: list[bool] = answer["same"]
        self.restored: bool = answer["restored"]
        self.records = [msgspec.convert(r, evidence.RankRecord) for r in answer["records"]]
        self.said = [r for r in self.records if isinstance(r, evidence.OracleCall)]

    def history(self, name: str) -> CallHistory:
        document = (self.folder / name / "call.json").read_bytes()
        call = msgspec.json.decode(document, type=evidence.CapturedCall)
        tensors = read_tensors(self.folder, f"{name}/tensors.safetensors")
        return CallHistory(name, call, lambda: tensors)

    def run(self, replays: tuple[ReplayHistory, ...] = ()) -> RunHistory:
        """A run that holds no more than the records and the calls."""
        names = [one.call for one in self.said if one.call is not None]
        return RunHistory(
            id="captured",
            ranks={0: histories.stream("runs/captured/ranks/rank0.jsonl", self.records)},
            calls={name: self.history(name) for name in names},
            replays=replays,
        )


@pytest.fixture(scope="module")
def captured(foreign: Foreign, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    folder = tmp_path_factory.mktemp("captured") / "oracles"
    answer = foreign(
        "oracle", "capture", folder=str(folder), recorders=["oracle"], calls=CALLS, compare=True
    )
    return Captured(folder, answer)


def test_every_call_is_kept_whole_and_within_bounds(captured: Captured) -> None:
    assert [one.reason for one in captured.said] == [None] * len(CALLS)
    for number, one in enumerate(captured.said):
        assert one.call is not None
        assert (one.number, one.step, one.stored) == (number, number, True)
        call = captured.history(one.call)
        assert call_id(call.call) == one.call
        require_bounds(call.call, call.tensors())
        assert call.call.requests == ["r0", "r1", "r2", "r3"]


def test_capturing_changes_nothing_and_leaves_nothing_behind(captured: Captured) -> None:
    assert captured.same == [True] * len(CALLS)
    assert captured.restored


def test_what_is_stored_is_what_the_worker_digested(captured: Captured) -> None:
    run = captured.run()
    for one in taken(run):
        assert one.record.call is not None
        assert list(changed(one, run.calls[one.record.call])) == []


def test_traits_say_what_a_call_holds(captured: Captured) -> None:
    held = [set(one.traits) for one in captured.said]
    shared = {"accepted", "recovered", "placeholder", "prefill", "random", "penalties", "allowed"}
    for traits in held:
        assert shared | {"bias", "bad_words", "min_tokens", "top_p", "min_p"} <= traits
    assert ["greedy" in traits for traits in held] == [call["greedy"] for call in CALLS]
    assert ["mask" in traits for traits in held] == [call["replay"] for call in CALLS]
    assert ["probabilistic" in t for t in held] == [call["probabilistic"] for call in CALLS]
    assert any("ties" in traits for traits in held)


def test_the_reference_agrees_with_vllm(captured: Captured) -> None:
    run = captured.run()
    for one in taken(run):
        call = run.calls[one.record.call or ""]
        outcome = judged.production(call, one.where())
        assert outcome.findings == []
        assert outcome.undecided == []
        assert list(judged.supports(call, call.tensors(), one.where())) == []


# --- replay ------------------------------------------------------------------------------------


def run_again(
    foreign: Foreign, captured: Captured, name: str, keep: Path, *faults: str, repetitions: int = 2
) -> ReplayHistory:
    call = captured.history(name)
    planned = evidence.PlannedCall(call=name, arms=arms(call.tensors()))
    records: list[evidence.ReplayRecord] = []
    for arm in planned.arms:
        told = foreign(
            "oracle",
            "run_again",
            folder=str(captured.folder),
            call=name,
            arm=arm,
            keep=str(keep),
            faults=list(faults),
            repetitions=repetitions,
        )
        records += [msgspec.convert(record, evidence.ReplayRecord) for record in told]
    flags = call.call.flags
    replay = oracles.replay(
        call,
        records,
        repetitions=repetitions,
        planned=[planned],
        device=flags.device,
        device_name=flags.device_name,
    )
    outputs = {path.stem: read_tensors(keep, path.name) for path in keep.glob("*.safetensors")}
    return ReplayHistory(replay.id, replay.replay, replay.results, outputs.__getitem__)


def findings(run: RunHistory) -> list[Finding]:
    return ORACLE.function(oracles.claim(), {"run": run}).findings


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_replays_are_exact(
    foreign: Foreign, captured: Captured, tmp_path: Path, number: int
) -> None:
    name = captured.said[number].call
    assert name is not None
    replay = run_again(foreign, captured, name, tmp_path / "kept")
    assert replay.results is not None
    assert len(replay.results.records) == 2 * (1 if CALLS[number]["greedy"] else 2)
    judgement = ORACLE.function(oracles.claim(), {"run": captured.run((replay,))})
    assert judgement.findings == []
    assert judgement.measured["exact"] == 1
    # The others were not replayed, and that is said of each.
    assert len(judgement.missing) == len(CALLS) - 1


def test_what_a_gpu_captured_is_replayed_here_up_to_its_tie_rule(
    foreign: Foreign, tmp_path: Path
) -> None:
    """vLLM's own Triton filter made the call, in the interpreter; its record says a GPU did."""
    answer = foreign(
        "oracle",
        "capture",
        folder=str(tmp_path / "oracles"),
        recorders=["oracle"],
        calls=CALLS[-1:],
        exact=True,
    )
    found = Captured(tmp_path / "oracles", answer)
    name = found.said[0].call
    assert name is not None
    here = run_again(foreign, found, name, tmp_path / "kept", repetitions=1)
    run = by_a_gpu(found.run((here,)))
    judgement = ORACLE.function(oracles.claim(), {"run": run})
    assert judgement.findings == []
    assert judgement.measured["repetitions"] == 2
    # That the rules part some rows, and move some logprobs, is what makes the test one.
    assert told_of_no_rule(run)


def by_a_gpu(run: RunHistory) -> RunHistory:
    """The run as if its only call had been made on a GPU, with all digests redone."""
    ((name, history),) = run.calls.items()
    flags = msgspec.structs.replace(history.call.flags, device="cuda", device_name="A GPU")
    assert flags.top_k_ties == "exact"
    call = msgspec.structs.replace(history.call, flags=flags)
    new = CallHistory(call_id(call), call, history.tensors)

    def renamed(record: Any) -> Any:
        told = getattr(record, "call", None) == name
        return msgspec.structs.replace(record, call=new.id) if told else record

    def stream(each: Any) -> Any:
        return dataclasses.replace(each, records=tuple(map(renamed, each.records)))

    replays = [
        dataclasses.replace(
            each,
            results=stream(each.results),
            replay=msgspec.structs.replace(
                each.replay,
                planned=[renamed(planned) for planned in each.replay.planned],
                device="cpu",
                device_name="A CPU",
            ),
        )
        for each in run.replays
    ]
    return dataclasses.replace(
        run,
        calls={new.id: new},
        ranks={rank: stream(each) for rank, each in run.ranks.items()},
        replays=tuple(replays),
    )


def told_of_no_rule(run: RunHistory) -> set[str]:
    """What is found where the replays do not tell by which rule ties were kept."""
    silent = [
        dataclasses.replace(each, replay=msgspec.structs.replace(each.replay, top_k_ties=None))
        for each in run.replays
    ]
    found = findings(dataclasses.replace(run, replays=tuple(silent)))
    assert {finding.anomaly for finding in found} <= {"oracle.backend-drift"}
    return {finding.message for finding in found}


PLANTED = {
    "positions-shifted": "oracle.production",
    "logits-written": "oracle.input-mutation",
    "generator-drawn": "oracle.production",
    "counts-unstable": "oracle.decisions",
    "support-cut": "mask.support-alignment",
}
"""Planted fault -> an anomaly that must show."""


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_planted_fault_is_found(
    foreign: Foreign, captured: Captured, tmp_path: Path, fault: str
) -> None:
    """In the last call, which was made with replay on."""
    name = captured.said[-1].call
    assert name is not None
    replay = run_again(foreign, captured, name, tmp_path / "kept", fault)
    run = captured.run((replay,))
    verdict = judge_claim(oracles.claim(), {oracles.RUN: run})
    assert verdict.verdict == "fail", verdict.reason
    assert PLANTED[fault] in verdict.failures


# --- the choice --------------------------------------------------------------------------------


def chosen(foreign: Foreign, folder: Path, options: str, **more: object) -> Captured:
    answer = foreign(
        "oracle",
        "capture",
        folder=str(folder),
        recorders=[f"oracle?{options}"],
        calls=more.pop("calls", CALLS),
        **more,
    )
    return Captured(folder, answer)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ("most=2", [0, 1]),
        ("every=2", [0, 2]),
        ("steps=1,3", [1, 3]),
        ("content=greedy", [1]),
        ("content=probabilistic+mask", [3]),
        ("content=new&most=2", [0, 1]),
    ],
)
def test_calls_are_chosen_by_number_step_and_content(
    foreign: Foreign, tmp_path: Path, options: str, kept: list[int]
) -> None:
    found = chosen(foreign, tmp_path / "oracles", options)
    assert [one.number for one in found.said] == kept
    assert len(list((tmp_path / "oracles").iterdir())) == len(kept)
    assert found.restored


def test_what_is_too_large_is_not_kept_and_says_so(foreign: Foreign, tmp_path: Path) -> None:
    found = chosen(foreign, tmp_path / "oracles", "call_bytes=100")
    assert [one.call for one in found.said] == [None] * len(CALLS)
    assert all(one.reason and "at most 100 are kept of a call" in one.reason for one in found.said)
    assert not (tmp_path / "oracles").exists()
    judgement = ORACLE.function(oracles.claim(), {"run": found.run()})
    assert len(judgement.missing) == len(CALLS)


def test_what_a_record_cannot_hold_is_not_captured_and_the_engine_goes_on(
    foreign: Foreign, tmp_path: Path
) -> None:
    calls = [{**CALLS[0], "custom": True}, CALLS[1]]
    found = chosen(foreign, tmp_path / "oracles", "most=8", calls=calls, compare=True)
    (reason, other) = (one.reason for one in found.said)
    assert reason is not None
    assert "logits processors ['LogitBiasState', 'PenaltiesState', 'BadWordsState', '_Cus" in reason
    assert other is None
    assert found.same == [True, True]
    assert found.restored


@pytest.mark.parametrize("seam", ["rejection_sampler.call", "rejection_sampler.verify"])
def test_a_seam_that_moved_leaves_all_of_the_recorder_out(
    foreign: Foreign, tmp_path: Path, seam: str
) -> None:
    moved = {seam: {"parameters": ["self", "moved"]}}
    calls = CALLS[:1]
    found = chosen(foreign, tmp_path / "oracles", "most=8", calls=calls, seams=moved, compare=True)
    assert found.said == []
    (record,) = found.records
    assert isinstance(record, evidence.Seam)
    assert (record.name, record.ok) == ("oracle", False)
    assert found.same == [True]
    assert found.restored
    run = found.run()
    verdict = judge_claim(oracles.claim(), {oracles.RUN: dataclasses.replace(run, id=oracles.RUN)})
    assert verdict.verdict == "unknown"
    assert "('self', 'moved')" in verdict.reason


def test_ranks_keep_equal_calls_once_and_large_ones_on_rank_0_alone(
    foreign: Foreign, tmp_path: Path
) -> None:
    folder = tmp_path / "oracles"
    first = chosen(foreign, folder, "shared_bytes=10", calls=CALLS[:1], rank=0)
    second = chosen(foreign, folder, "shared_bytes=10", calls=CALLS[:1], rank=1)
    assert first.said[0].call == second.said[0].call
    assert (first.said[0].stored, second.said[0].stored) == (True, False)
    assert len(list(folder.iterdir())) == 1


def test_large_processed_logits_are_kept_as_a_digest_that_replays_reproduce(
    foreign: Foreign, tmp_path: Path
) -> None:
    found = chosen(foreign, tmp_path / "oracles", "shared_bytes=10", calls=CALLS[:1])
    name = found.said[0].call
    assert name is not None
    call = found.history(name)
    (entry,) = (t for t in call.call.tensors if t.name == "processed_logits")
    assert not entry.stored
    assert "processed_logits" not in call.tensors()
    replay = run_again(foreign, found, name, tmp_path / "kept")
    judgement = ORACLE.function(oracles.claim(), {"run": found.run((replay,))})
    assert (judgement.findings, judgement.measured["exact"]) == ([], 1)
    assert not (tmp_path / "kept").exists()


def test_what_went_into_the_gather_is_digested_beside_what_came_out(
    foreign: Foreign, tmp_path: Path
) -> None:
    ranks = []
    for part in (0, 1):
        calls = [{**CALLS[0], "gathered": True, "part": part}]
        found = chosen(foreign, tmp_path / "oracles", "most=1", calls=calls, rank=part)
        ranks.append(found.said[0])
    assert [one.shard for one in ranks] == ranks[0].gathered == ranks[1].gathered
    assert ranks[0].hidden == ranks[1].hidden is not None


def test_chunks_are_as_small_as_they_are_asked_to_be(foreign: Foreign, tmp_path: Path) -> None:
    answer = foreign(
        "oracle",
        "capture",
        folder=str(tmp_path / "oracles"),
        recorders=["chunk-rows?most=5", "oracle"],
        calls=CALLS[-1:],
        compare=True,
    )
    found = Captured(tmp_path / "oracles", answer)
    for one in found.said:
        assert one.call is not None
        flags = found.history(one.call).call.flags
        assert (flags.chunk_logits, flags.chunks) == (5, 4)
        assert "chunked" in one.traits
    assert found.same == [True], "chunks change nothing"
    name = found.said[-1].call
    assert name is not None
    replay = run_again(foreign, found, name, tmp_path / "kept")
    assert findings(found.run((replay,))) == []


def test_options_have_defaults_and_are_taken_as_they_are() -> None:
    assert parse("") == Choice()
    assert parse("most=3&every=2&content=accepted+bonus&steps=4,7") == Choice(
        most=3, every=2, content=frozenset({"accepted", "bonus"}), steps=frozenset({4, 7})
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("much=3", "unknown option 'much'"),
        ("most=0", "expected a number from 1"),
        ("most=many", "expected a number from 1"),
        ("every=1,2", "expected a number from 1"),
        ("content=nonsense", "unknown content ['nonsense']"),
        ("steps=-1", "expected a number from 0"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: str, words: str) -> None:
    with pytest.raises(ChoiceError) as caught:
        parse(options)
    assert words in str(caught.value)


# --- exported ----------------------------------------------------------------------------------


def bare(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    """Run exported tests where there is vLLM, and nothing of ours."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *names]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_an_exported_call_runs_without_us_and_tells_another_result(
    captured: Captured, tmp_path: Path
) -> None:
    """One sound call, and one whose returned tokens were changed."""
    bundle = tmp_path / "bundle"
    shutil.copytree(captured.folder, bundle / "oracles")
    first, greedy = (captured.said[number].call or "" for number in (0, 1))
    sound = export(captured.history(first), bundle, tmp_path / "out")
    broken = export(captured.history(greedy), bundle, tmp_path / "out")
    data = next((tmp_path / "out").glob(f"oracle_{greedy[:12]}*"))
    tensors = load_file(data)
    tensors["sampled"][0] += 1
    save_file(tensors, data)
    found = bare(tmp_path / "out", sound.name, broken.name)
    assert "1 failed, 3 passed, 1 skipped" in found.stdout, found.stdout + found.stderr
    assert "production: sampled differs first at [0]" in found.stdout
    assert f"FAILED {broken.name}::test_call[off]" in found.stdout
