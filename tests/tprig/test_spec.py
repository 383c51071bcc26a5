from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tprig import evidence
from tprig.spec import EngineSpec, checkpoint_digest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


CHANGES: list[dict[str, Any]] = [
    {"model": Path("another")},
    {"platform": "cuda"},
    {"tensor_parallel_size": 2},
    {"python": "/another/python"},
    {"tree": "/a/tree@abc"},
    {"overlay": Path("an/overlay")},
    {"arguments": {"max_num_seqs": 4}},
    {"environment": {"A": "1"}},
    {"core_process": True},
    {"ranks_per_device": 2},
    {"seams": {"sampler.sample": {"attribute": "x"}}},
    {"replica": 1},
]


def test_every_field_of_a_spec_decides_its_key() -> None:
    base = EngineSpec(model=Path("model"))
    assert {name for change in CHANGES for name in change} == {
        field.name for field in dataclasses.fields(EngineSpec)
    }
    others = [dataclasses.replace(base, **change) for change in CHANGES]
    assert len({base.key, *(other.key for other in others)}) == len(others) + 1
    assert all(other != base for other in others)


def test_equal_specs_are_one_engine() -> None:
    one = EngineSpec(model=Path("m"), arguments={"a": 1, "b": [2]})
    two = EngineSpec(model=Path("m"), arguments={"b": [2], "a": 1})
    assert one == two
    assert {one: "engine"}[two] == "engine"
    assert one != "m"


def test_what_is_compiled_depends_neither_on_timing_nor_on_who_came_first() -> None:
    """Two engines of one configuration would differ in the last bits of their logits."""
    environment = EngineSpec(model=Path("m"), platform="cuda").process_environment
    assert environment["TORCHINDUCTOR_DETERMINISTIC"] == "1"
    assert environment["VLLM_DISABLE_COMPILE_CACHE"] == "1"


def test_arguments_and_variables_override_the_platform_s() -> None:
    spec = EngineSpec(
        model=Path("m"), arguments={"block_size": 64}, environment={"OMP_NUM_THREADS": "8"}
    )
    assert spec.engine_arguments["block_size"] == 64
    assert spec.engine_arguments["model"] == "m"
    assert spec.process_environment["OMP_NUM_THREADS"] == "8"
    assert spec.process_environment["VLLM_USE_V2_MODEL_RUNNER"] == "1"


@pytest.mark.parametrize(("tp", "ranks", "devices"), [(1, 1, 1), (2, 1, 2), (2, 2, 1), (3, 2, 2)])
def test_ranks_share_devices(tp: int, ranks: int, devices: int) -> None:
    spec = EngineSpec(model=Path("m"), tensor_parallel_size=tp, ranks_per_device=ranks)
    assert spec.device_count == devices


def test_the_arm_is_a_record_of_the_bundle(model: Path) -> None:
    arguments = {"speculative_config": {"method": "mtp"}, "dtype": "float32"}
    arm = EngineSpec(model=model, tensor_parallel_size=2, arguments=arguments).arm()
    again = msgspec.json.decode(msgspec.json.encode(arm), type=evidence.Arm)
    assert again == arm
    assert json.loads(bytes(again.engine_args["speculative_config"])) == {"method": "mtp"}
    assert arm.model_digest == checkpoint_digest(model)


# --- the checkpoint's digest -----------------------------------------------------------------


def test_the_digest_follows_names_and_contents(model: Path) -> None:
    first = checkpoint_digest(model)
    (model / "model.safetensors").rename(model / "weights.safetensors")
    renamed = checkpoint_digest(model)
    (model / "weights.safetensors").rename(model / "model.safetensors")
    (model / "folder").mkdir()
    assert checkpoint_digest(model) == first
    (model / "model.safetensors").write_bytes(b"Weights")
    assert len({first, renamed, checkpoint_digest(model)}) == 3


def test_a_file_that_was_replaced_in_the_same_instant_is_read_again(model: Path) -> None:
    path = model / "model.safetensors"
    first, state = checkpoint_digest(model), path.stat()
    (model / "new").write_bytes(b"WEIGHTS")
    os.utime(model / "new", ns=(state.st_atime_ns, state.st_mtime_ns))
    (model / "new").rename(path)
    assert path.stat().st_mtime_ns == state.st_mtime_ns
    assert checkpoint_digest(model) != first


def test_a_checkpoint_is_read_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = checkpoint_digest(model)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("it was read again"))
    assert checkpoint_digest(model) == first


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        EngineSpec(model=tmp_path / "none").arm()
