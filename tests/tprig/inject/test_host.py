"""The engine host: what it does for its client, and that all it says can be decoded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tprig.inject.foreign.client import Foreign
from tprig import evidence, messages
from tprig.bundle import Writer, load

DECODER = msgspec.json.Decoder(messages.FromHost)
TAGS = {kind.__struct_config__.tag for kind in messages.FromHost.__args__}
STOP = {"do": "stop"}


def request(name: str, arrival_step: int = 0, max_tokens: int = 4) -> dict[str, Any]:
    sampling = evidence.Sampling(temperature=0.8, max_tokens=max_tokens, seed=3, logprobs=4)
    asked = evidence.Request(
        id=name, prompt_token_ids=[1, 2], arrival_step=arrival_step, sampling=sampling
    )
    return dict(msgspec.to_builtins(asked))


def order(folder: Path, *requests: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "do": "run",
        "run": "r1",
        "ranks": str(folder / "ranks"),
        "recorders": ["verification"],
        "faults": {"worker": [], "core": []},
        "requests": list(requests),
        **fields,
    }


def decoded(answer: dict[str, Any]) -> list[messages.FromHost]:
    return [DECODER.decode(line) for line in answer["lines"]]


def tags(answer: dict[str, Any]) -> list[str]:
    return [json.loads(line)["type"] for line in answer["lines"]]


# --- the contract ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("host")


@pytest.fixture(scope="module")
def served(foreign: Foreign, folder: Path) -> dict[str, Any]:
    """An engine described, given one run with faults, and stopped."""
    faults = {"worker": ["mask-row-shifted"], "core": ["mask-lost"]}
    requests = [request("a"), request("refused"), request("b", arrival_step=1, max_tokens=3)]
    orders = [{"do": "describe"}, order(folder, *requests, faults=faults), STOP]
    return dict(foreign("hosts", "serve", folder=str(folder), messages=orders))


def test_every_message_that_a_host_sends_is_one_that_the_client_decodes(
    foreign: Foreign, served: dict[str, Any], folder: Path
) -> None:
    """`forbid_unknown_fields` makes each field's name part of this."""
    refused = foreign("hosts", "serve", folder=str(folder), messages=[], trouble="build")
    crashed = foreign(
        *("hosts", "serve"),
        folder=str(folder),
        messages=[order(folder, request("a"), ranks=str(folder / "crashed"))],
        trouble="step",
    )
    answers = (served, refused, crashed)
    for answer in answers:
        decoded(answer)
    assert {tag for answer in answers for tag in tags(answer)} == TAGS


def test_a_run_s_messages_are_in_order(served: dict[str, Any]) -> None:
    assert tags(served) == [
        *("ready", "described"),
        # Armed; then what is due before step 0, step 0 and its strike, step 1 with what is due.
        *("fault", "refusal", "fault", "emission", "step", "emission", "emission", "step"),
        *("emission", "step"),
        *("done", "stopped"),
    ]
    assert served["code"] == 0
    assert served["down"]


def test_a_timed_run_hands_over_its_outputs_when_it_is_done(
    foreign: Foreign, folder: Path, served: dict[str, Any]
) -> None:
    requests = [request("a"), request("b", arrival_step=1, max_tokens=3)]
    timed = order(folder, *requests, ranks=str(folder / "timed"), recorders=[], timed=True)
    answer = foreign("hosts", "serve", folder=str(folder), messages=[timed, STOP])
    assert tags(answer) == [
        *("ready", "step", "step", "step"),
        *("emission", "emission", "emission", "emission", "done", "stopped"),
    ]
    held = [m for m in decoded(answer) if isinstance(m, evidence.Emission)]
    usual = [m for m in decoded(served) if isinstance(m, evidence.Emission)]
    assert [(e.step, e.request, e.rows) for e in held] == [
        (e.step, e.request, e.rows) for e in usual
    ]


# --- describe ----------------------------------------------------------------------------------


def test_the_description_is_what_the_bundle_keeps(served: dict[str, Any], foreign: Foreign) -> None:
    (described,) = (m for m in decoded(served) if isinstance(m, messages.Described))
    assert described.vllm_version == foreign.warm["vllm_version"]
    assert described.vllm_path == foreign.warm["vllm_path"]
    assert len(described.vllm_digest) == 64
    assert described.imported_files > 500
    assert {"python", "torch", "triton", "numpy"} <= set(described.versions)
    assert set(described.pids) == {"host", "rank0"}
    assert described.vocab_size == 40
    assert all(seam.ok for seam in described.seams)
    assert described.config["parallel.tensor_parallel_size"] == "1"
    assert described.config["scheduler.max_num_seqs"].isdigit()


# --- run ---------------------------------------------------------------------------------------


def test_outputs_are_recorded_as_vllm_returned_them(served: dict[str, Any]) -> None:
    emissions = [m for m in decoded(served) if isinstance(m, evidence.Emission)]
    assert [(e.step, e.request, e.first, len(e.rows)) for e in emissions] == [
        (0, "a", 0, 2),
        (1, "a", 2, 2),
        (1, "b", 0, 2),
        (2, "b", 2, 1),
    ]
    assert [e.finish_reason for e in emissions] == [None, "length", None, "length"]
    first = emissions[0]
    # The planted fault lost the first of two masks.
    assert first.supports == [[3, 5, 8]]
    assert emissions[1].supports == [[3, 5, 8]] * 2
    assert first.rows[0] == evidence.Row(
        token_id=5,
        logprob=-1.5,
        rank=2,
        finite=evidence.Finite(token_ids=[8, 5, 3], logprobs=[-0.5, -1.5, -2.5], complete=True),
    )


def test_a_request_that_vllm_refuses_is_recorded_in_its_words(served: dict[str, Any]) -> None:
    assert [m for m in decoded(served) if isinstance(m, evidence.Refusal)] == [
        evidence.Refusal(request="refused", error="ValueError", message="refused of 2 tokens")
    ]


def test_steps_carry_vllm_s_own_counts(served: dict[str, Any]) -> None:
    steps = [m for m in decoded(served) if isinstance(m, evidence.Step)]
    assert [(s.step, s.running, s.waiting, s.preempted) for s in steps] == [
        (0, 1, 0, 0),
        (1, 2, 0, 0),
        (2, 1, 0, 0),
    ]
    assert {(s.drafts, s.draft_tokens, s.accepted_tokens) for s in steps} == {(1, 3, 1)}
    assert all(s.accepted_per_position == [1, 0, 0] for s in steps)
    times = [time for s in steps for time in (s.start_ns, s.end_ns)]
    assert times == sorted(times)


def test_faults_strike_where_they_are_planted_and_say_so(
    served: dict[str, Any], folder: Path
) -> None:
    core = [m for m in decoded(served) if isinstance(m, evidence.Fault)]
    assert [(f.name, f.event) for f in core] == [("mask-lost", "armed"), ("mask-lost", "struck")]
    lines = (folder / "ranks" / "rank0.jsonl").read_bytes().splitlines()
    records = [msgspec.json.decode(line, type=evidence.RankRecord) for line in lines[1:-1]]
    worker = [r for r in records if isinstance(r, evidence.Fault)]
    assert [(f.event, f.step) for f in worker] == [("armed", None), ("struck", 0)]
    assert {f.name for f in worker} == {"mask-row-shifted"}
    assert [r.step for r in records if isinstance(r, evidence.Verification)] == [0, 1, 2]


def test_every_request_arrives_at_its_step_or_when_nothing_is_left(
    foreign: Foreign, folder: Path
) -> None:
    """Two that wait for the same step come together, and far-off steps are not waited for."""
    requests = [
        request("last", arrival_step=500, max_tokens=1),
        request("with the last", arrival_step=500, max_tokens=1),
        request("first", max_tokens=6),
        request("during it", arrival_step=1, max_tokens=2),
        request("far off", arrival_step=100, max_tokens=2),
    ]
    run = order(folder, *requests, ranks=str(folder / "arrivals"))
    answer = foreign("hosts", "serve", folder=str(folder), messages=[run, STOP])
    assert answer["added"] == [
        [0, "first"],
        [1, "during it"],
        [3, "far off"],
        [4, "last"],
        [4, "with the last"],
    ]


def test_requests_are_aborted_when_their_time_has_come(foreign: Foreign, folder: Path) -> None:
    """One that is done by then is aborted all the same, which vLLM takes for nothing."""
    requests = [
        request("served", max_tokens=8),
        {**request("cut", max_tokens=8), "abort_step": 2},
        {**request("done", max_tokens=2), "abort_step": 3},
    ]
    run = order(folder, *requests, ranks=str(folder / "aborts"))
    answer = foreign("hosts", "serve", folder=str(folder), messages=[run, STOP])
    assert answer["aborted"] == [[2, "cut"], [3, "done"]]
    emitted = [m for m in decoded(answer) if isinstance(m, evidence.Emission)]
    assert [m.step for m in emitted if m.request == "cut"] == [0, 1]
    assert [m.step for m in emitted if m.request == "served"] == [0, 1, 2, 3]
    assert tags(answer)[-2:] == ["done", "stopped"]


def test_a_run_without_requests_is_done_at_once(foreign: Foreign, folder: Path) -> None:
    run = order(folder, ranks=str(folder / "empty"))
    answer = foreign("hosts", "serve", folder=str(folder), messages=[run, STOP])
    assert tags(answer) == ["ready", "done", "stopped"]


def test_runs_follow_one_another_and_faults_do_not_outlive_theirs(
    foreign: Foreign, folder: Path
) -> None:
    ranks = [str(folder / name) for name in ("with", "without")]
    faults = {"worker": ["mask-token-cut"], "core": ["mask-lost"]}
    runs = [
        order(folder, request("a"), ranks=ranks[0], faults=faults),
        order(folder, request("a"), ranks=ranks[1]),
    ]
    answer = foreign("hosts", "serve", folder=str(folder), messages=[*runs, STOP])
    told = decoded(answer)
    first_end = next(i for i, m in enumerate(told) if isinstance(m, messages.Done))
    assert not any(isinstance(m, evidence.Fault) for m in told[first_end:])
    supports = [m.supports for m in told[first_end:] if isinstance(m, evidence.Emission)]
    assert supports == [[[3, 5, 8]] * 2] * 2
    text = (Path(ranks[1]) / "rank0.jsonl").read_text()
    assert '"fault"' not in text
    assert text.endswith('{"type":"end","records":2,"dropped":0}\n')


def test_the_records_of_a_rank_are_a_stream_of_the_bundle(
    foreign: Foreign, folder: Path, tmp_path: Path
) -> None:
    writer = Writer(tmp_path / "bundle")
    ranks = writer.path("runs/r1/ranks/rank0.jsonl").parent
    run = order(folder, request("a"), ranks=str(ranks))
    foreign("hosts", "serve", folder=str(folder), messages=[run, STOP])
    (stream,) = load(tmp_path / "bundle").runs["r1"].ranks.values()
    assert stream.complete
    assert len(stream.records) == 2


def test_a_fault_whose_seam_has_moved_is_left_out(foreign: Foreign, folder: Path) -> None:
    """That it has moved stands in the description; the run itself goes on."""
    moved = {"sampling_mask.slice_request": {"parameters": ["self", "index"]}}
    run = order(
        folder,
        request("a"),
        ranks=str(folder / "moved"),
        faults={"worker": [], "core": ["mask-lost"]},
    )
    answer = foreign(
        *("hosts", "serve"),
        folder=str(folder),
        messages=[{"do": "describe"}, run, STOP],
        request={"seams": moved},
    )
    told = decoded(answer)
    (described,) = (m for m in told if isinstance(m, messages.Described))
    assert [seam.name for seam in described.seams if not seam.ok] == list(moved)
    assert not any(isinstance(m, evidence.Fault) for m in told)
    assert tags(answer)[-2:] == ["done", "stopped"]


# --- ends --------------------------------------------------------------------------------------


def test_an_engine_that_vllm_does_not_build_is_refused_in_its_words(
    foreign: Foreign, folder: Path
) -> None:
    answer = foreign("hosts", "serve", folder=str(folder), messages=[STOP], trouble="build")
    assert decoded(answer) == [
        messages.Refused(error="ValueError", message="block size 7 is not supported")
    ]
    assert answer["code"] == 1
    assert "Traceback" in (folder / "host.log").read_text()


def test_an_engine_that_raises_while_it_serves_has_crashed(foreign: Foreign, folder: Path) -> None:
    run = order(folder, request("a"), ranks=str(folder / "crash"))
    answer = foreign("hosts", "serve", folder=str(folder), messages=[run, STOP], trouble="step")
    assert decoded(answer)[-1] == messages.Crashed(
        error="RuntimeError", message="the engine core died"
    )
    assert answer["code"] == 1
    # The rank's stream has ended all the same.
    assert '"type":"end"' in (folder / "crash" / "rank0.jsonl").read_text()


def test_an_unknown_request_is_an_error(foreign: Foreign, folder: Path) -> None:
    answer = foreign("hosts", "serve", folder=str(folder), messages=[{"do": "sing"}, STOP])
    assert decoded(answer)[-1] == messages.Crashed(
        error="ValueError", message="unknown request 'sing'"
    )


def test_a_host_ends_with_its_client(foreign: Foreign, folder: Path) -> None:
    answer = foreign("hosts", "serve", folder=str(folder), messages=[])
    assert tags(answer) == ["ready"]
    assert answer["code"] == 1


# --- surroundings ------------------------------------------------------------------------------


def test_the_engine_is_built_from_what_was_asked_for(served: dict[str, Any], folder: Path) -> None:
    assert served["arguments"] == [str(folder), 7, "tprig_inject.worker.WorkerExtension"]
    assert served["core_process"] is False
    assert served["environment"]["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_a_core_of_its_own_and_cores_to_run_on(foreign: Foreign, folder: Path) -> None:
    core = min(os.sched_getaffinity(0))
    asked = {"core_process": True, "affinity": [core]}
    answer = foreign("hosts", "serve", folder=str(folder), messages=[STOP], request=asked)
    assert answer["core_process"] is True
    assert answer["environment"]["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert answer["affinity"] == [core]


def test_children_of_the_host_know_their_engine(served: dict[str, Any], folder: Path) -> None:
    environment = served["environment"]
    assert environment["TPRIG_TEST"] == "seen"
    assert environment["TMPDIR"] == str(folder)
    settings = json.loads(environment["TPRIG_INJECT"])
    assert settings["runtime"] == str(folder)
    assert settings["shm_prefix"] == "tprig-e1-"
    assert settings["forked"] is True


def test_processes_without_an_environment_of_their_own_show_their_lease(
    served: dict[str, Any],
) -> None:
    """The kernel shows that of the template, which is older than the lease."""
    assert "/memfd:TPRIG_LEASE_ID=7f (deleted)" in served["open"]


def test_on_the_cpu_workers_are_forked_and_meet_under_the_engine_s_name(
    served: dict[str, Any], folder: Path
) -> None:
    assert served["start_method"] == "fork"
    assert served["rendezvous"].startswith(f"file://{folder}/tprig-e1-")
