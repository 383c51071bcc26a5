"""What vLLM, or the machine, will not have: told in words that help, and nothing left."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tprig.engine.bench import Bench, left, order, workload
from tprig import evidence
from tprig.engine import EngineError, Order


def test_a_checkpoint_that_does_not_exist(bench: Bench, tmp_path: Path) -> None:
    missing = tmp_path / "no such folder"
    with pytest.raises(EngineError) as caught:
        bench.engine(model=missing)
    assert caught.value.event == "refused"
    assert str(caught.value) == (
        f"engine e0: expected a checkpoint folder at {missing}, found No such file or directory "
        f"({missing}); name one with --tprig-model"
    )


def refused(bench: Bench, tp: int = 1, **changes: Any) -> str:  # noqa: ANN401 - fields
    """What the user is told of an engine that cannot be built; nothing of it is left."""
    engine = bench.engine(tp, **changes)
    with pytest.raises(EngineError) as caught:
        engine.start()
    assert caught.value.event == "refused"
    assert not engine.serving
    engine.stop()
    assert left(engine) == []
    assert bench.names(engine)[:2] == ["launching", "refused"]
    assert bench.names(engine)[-2:] == ["stopped", "cleaned"]
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param({"no_such_argument": 1}, "no_such_argument", id="unknown"),
        pytest.param({"block_size": 33}, "No common block size for 33", id="value"),
        pytest.param({"max_model_len": 1 << 20}, "max_model_len", id="too-long"),
    ],
)
def test_arguments_that_vllm_does_not_take(
    bench: Bench, arguments: dict[str, Any], words: str
) -> None:
    told = refused(bench, arguments=arguments)
    assert words in told
    assert "\nsee engines/e0/logs/host.log" in told
    assert "Traceback" not in told


def test_weights_that_a_worker_cannot_load(bench: Bench, model: Path, tmp_path: Path) -> None:
    """vLLM itself only says that its workers could not start: the cause is in the log."""
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    (broken / "model.safetensors").write_bytes(b"\0" * 64)
    told = refused(bench, 2, model=broken)
    assert "WorkerProc initialization failed" in told
    assert "SafetensorError: Error while deserializing header" in told


def mixed(run: str) -> Order:
    """One request that vLLM serves, and one that it refuses because it speculates."""
    requests = order("r").workload.requests
    sampling = msgspec.structs.replace(requests[1].sampling, min_p=0.1)
    bad = msgspec.structs.replace(requests[1], id="bad", sampling=sampling)
    return Order(run=run, test="a test", workload=workload([requests[0], bad, requests[1]]))


@pytest.mark.parametrize("core_process", [False, True])
def test_a_request_that_vllm_refuses_is_recorded_and_the_others_are_served(
    bench: Bench, *, core_process: bool
) -> None:
    engine = bench.started(core_process=core_process)
    assert engine.run(mixed("mixed")).complete
    assert engine.run(order("after")).complete
    engine.stop()
    outputs = bench.outputs("mixed")
    (refusal,) = (o for o in outputs if isinstance(o, evidence.Refusal))
    assert refusal.request == "bad"
    assert "min_p" in refusal.message
    finished = {o.request for o in outputs if isinstance(o, evidence.Emission) and o.finish_reason}
    assert finished == {"r0", "r1"}
    assert bench.rows("mixed") == bench.rows("after") == 12
    assert bench.names(engine) == ["launching", "ready", "stopped", "cleaned"]


def test_a_run_of_refusals_alone_is_complete(bench: Bench) -> None:
    engine = bench.started()
    (bad,) = (request for request in mixed("m").workload.requests if request.id == "bad")
    assert engine.run(Order(run="r", test="a test", workload=workload([bad]))).complete
    engine.stop()
    assert [type(output) for output in bench.outputs("r")] == [evidence.Refusal]
