"""A run that is not what its role says proves nothing, however sound it looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from tests.fakes import histories
from tests.tprig.checkers import edits
from tprig.checkers import CHECKERS
from tprig.checkers.verdict import judge_claim
from tprig.evidence import Arm, Claim, Verdict
from tprig.history import RunHistory

OFF, ON = histories.pair(5)
TP1, TP2 = histories.tp_pair(6)
OUTPUTS = histories.claim("outputs", {"off": "off", "on": "on"})
PARITY = histories.claim("parity", {"tp1": "tp1", "tp2": "tp2"}, tp=2)


def judged(claim: Claim, *runs: RunHistory) -> Verdict:
    return judge_claim(claim, {run.id: run for run in runs})


def with_arm(run: RunHistory, **changes: Any) -> RunHistory:  # noqa: ANN401
    assert run.engine is not None
    assert run.engine.arm is not None
    arm: Arm = structs.replace(run.engine.arm, **changes)
    return replace(run, engine=replace(run.engine, arm=arm))


def with_argument(run: RunHistory, name: str, value: object) -> RunHistory:
    assert run.engine is not None
    assert run.engine.arm is not None
    raw = msgspec.Raw(msgspec.json.encode(value))
    return with_arm(run, engine_args={**run.engine.arm.engine_args, name: raw})


def with_run(run: RunHistory, **changes: Any) -> RunHistory:  # noqa: ANN401
    assert run.run is not None
    return replace(run, run=structs.replace(run.run, **changes))


def test_sound_runs_are_what_they_are_said_to_be() -> None:
    assert judged(OUTPUTS, OFF, ON).verdict == "pass"
    assert judged(PARITY, TP1, TP2).verdict == "pass"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda run: with_arm(run, tensor_parallel_size=2),
            "run on: expected tensor-parallel size 1, found 2 in spec.json",
        ),
        (
            lambda run: edits.edit_config(run, parallel__tensor_parallel_size="2"),
            "run on: expected tensor-parallel size 1, found 2 in effective.json",
        ),
        (
            lambda run: edits.edit_effective(run, config={}),
            "run on: expected tensor-parallel size 1, found None in effective.json",
        ),
        (
            lambda run: with_run(run, rank_streams=2),
            "run on: expected tensor-parallel size 1, found 2 in run.json",
        ),
        (
            lambda run: with_argument(run, "return_sampling_mask", value=False),
            "run on: expected replay on, found it off in spec.json",
        ),
        (
            lambda run: edits.edit_config(run, model__return_sampling_mask="False"),
            "run on: expected replay on, found it off in effective.json",
        ),
        (
            lambda run: with_argument(run, "max_model_len", 7),
            "expected runs off and on to agree in max_model_len, found None and 7",
        ),
        (
            lambda run: with_arm(run, model_digest="f" * 64),
            f"expected runs off and on to agree in checkpoint, found {'0' * 64} and {'f' * 64}",
        ),
        (
            lambda run: edits.edit_effective(run, vllm_version="0.31.0"),
            "expected runs off and on to agree in vLLM version, found 0.32.0 and 0.31.0",
        ),
        (
            lambda run: edits.edit_effective(run, vllm_digest="f" * 64),
            f"expected runs off and on to agree in vLLM digest, found {'1' * 64} and {'f' * 64}",
        ),
        (
            lambda run: with_run(run, faults=["mask-lost"]),
            "run on: expected no planted fault, found mask-lost",
        ),
        (
            lambda run: replace(run, engine=replace(run.engine, arm=None)),
            "spec.json of the engine of run on is not there",
        ),
        (
            lambda run: replace(run, engine=replace(run.engine, effective=None)),
            "effective.json of the engine of run on is not there",
        ),
    ],
)
def test_a_run_that_is_not_what_its_role_says_decides_nothing(
    change: Callable[[RunHistory], RunHistory], reason: str
) -> None:
    verdict = judged(OUTPUTS, OFF, change(ON))
    assert verdict.verdict == "unknown"
    assert reason in verdict.reason.split("; ")


def test_a_tp1_run_is_no_tp2_run() -> None:
    """However the plan casts it: the run itself says what it was."""
    renamed = replace(TP1, id="tp2")
    found = judged(PARITY, TP1, renamed)
    assert found.verdict == "unknown"
    assert "run tp2: expected tensor-parallel size 2, found 1 in effective.json" in found.reason


def test_a_run_is_not_held_against_itself() -> None:
    claim = histories.claim("parity", {"tp1": "tp1", "tp2": "tp1"}, tp=2)
    found = judged(claim, TP1)
    assert found.verdict == "unknown"
    assert "the claim casts one run in several roles" in found.reason


def test_arms_may_differ_in_what_is_compared() -> None:
    """TP2 imports other modules and asks for other executors; that is no other vLLM."""
    tp2 = with_argument(TP2, "distributed_executor_backend", "mp")
    assert judged(PARITY, TP1, edits.edit_effective(tp2, vllm_digest="f" * 64)).verdict == "pass"
    other = edits.edit_effective(tp2, vllm_version="0.31.0")
    assert "agree in vLLM version" in judged(PARITY, TP1, other).reason


def test_what_was_not_recorded_can_not_have_been_judged() -> None:
    claim = histories.claim("acceptance", {"on": "on"})
    assert judged(claim, ON).verdict == "pass"
    found = judged(claim, with_run(ON, recorders=[]))
    assert found.verdict == "unknown"
    assert "expected verification among its recorders, found []" in found.reason


def test_what_another_program_recorded_has_no_engine_of_ours() -> None:
    assert CHECKERS["rank_order"].roles == ()
    bare = replace(ON, engine=None)
    claim = histories.claim("rank_order", {"imported": "on"})
    assert "engine of run on" not in judged(claim, bare).reason
    assert "engine of run on" in judged(histories.claim("rank_order", {"on": "on"}), bare).reason


def test_a_fault_that_is_the_claim_s_own_is_no_obstacle() -> None:
    claim = histories.claim("caught", {"off": "off", "on": "on"})
    verdict = judged(claim, OFF, with_run(ON, faults=["mask-lost"]))
    assert "planted fault, found" not in verdict.reason
