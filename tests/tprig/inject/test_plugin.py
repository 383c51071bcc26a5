"""What vLLM and Triton find of ours on their path, and what it does to a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tprig_inject import config, process
from tprig_inject.config import Config

from tests.tprig.inject.foreign.client import Foreign


def settings(runtime: Path, **fields: Any) -> dict[str, Any]:
    return {
        "runtime": str(runtime),
        "shm_prefix": "tprig-e1-",
        "platform": "cpu",
        "host_pid": None,
        "forked": False,
        "ranks_per_device": 1,
        "seams": {"sampler.sample": {"parameters": ["self"]}},
        **fields,
    }


# --- found -------------------------------------------------------------------------------------


def test_the_inject_folder_offers_itself_without_being_installed(foreign: Foreign) -> None:
    assert foreign("plugins", "offered") == {
        "vllm.general_plugins": ["tprig = tprig_inject.plugin:load"],
        "triton.backends": ["cpu = tprig_triton_cpu"],
    }


# --- loaded ------------------------------------------------------------------------------------


def test_outside_of_an_engine_nothing_is_done(foreign: Foreign) -> None:
    assert foreign("plugins", "load", settings=None) == {
        "supplied": 0,
        "allowed": [],
        "settled": False,
        "watched": False,
    }


def test_the_interpreter_is_supplied_once_on_the_cpu(foreign: Foreign, tmp_path: Path) -> None:
    """vLLM loads its plugins more than once in a process."""
    assert foreign("plugins", "load", settings=settings(tmp_path), times=3)["supplied"] == 1
    on_cuda = settings(tmp_path, platform="cuda")
    assert foreign("plugins", "load", settings=on_cuda)["supplied"] == 0


def test_ranks_share_a_device_where_they_are_told_to(foreign: Foreign, tmp_path: Path) -> None:
    shared = settings(tmp_path, platform="cuda", ranks_per_device=2)
    assert foreign("plugins", "load", settings=shared)["allowed"] == [2]
    assert foreign("plugins", "load", settings=settings(tmp_path))["allowed"] == []


@pytest.mark.parametrize(
    ("host_pid", "forked", "entered"),
    [
        pytest.param(1, False, True, id="spawned"),
        pytest.param(1, True, False, id="forked: has it from its parent"),
        pytest.param(None, False, False, id="the host: has done it"),
    ],
)
def test_a_spawned_process_settles_and_is_watched(
    foreign: Foreign, tmp_path: Path, host_pid: int | None, *, forked: bool, entered: bool
) -> None:
    asked = settings(tmp_path, platform="cuda", host_pid=host_pid, forked=forked)
    told = foreign("plugins", "load", settings=asked)
    assert (told["settled"], told["watched"]) == (entered, entered)


# --- settings ----------------------------------------------------------------------------------


def test_children_read_the_settings_that_were_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(config.VARIABLE, "")
    published = Config(**settings(tmp_path, host_pid=7))
    published.publish()
    assert config.current() == published
    assert published.place == process.Place(tmp_path, "tprig-e1-")
    monkeypatch.delenv(config.VARIABLE)
    assert config.current() is None


# --- the Triton backend ------------------------------------------------------------------------


def test_the_backend_stands_for_the_interpreter_and_for_no_gpu(foreign: Foreign) -> None:
    told = foreign("plugins", "backend")
    assert told["registered"]
    assert told["vllm has triton"], "without a backend that it likes, vLLM goes without Triton"
    assert told["supports"] == ["cpu"]
    assert (told["active"], told["others active"]) == (False, [])
    assert (told["device"], told["target"]) == ("cpu", "cpu")


def test_the_backend_refuses_to_compile_and_says_what_to_do(foreign: Foreign) -> None:
    refused = foreign("plugins", "backend")["refused"]
    assert set(refused) == {"parse_options", "add_stages", "get_benchmarker"}
    assert "Set TRITON_INTERPRET=1 before triton is imported" in refused["add_stages"]


# --- devices that are shared -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks_per_device", "real", "places"),
    [(2, 1, [0, 0]), (2, 2, [0, 1, 0, 1]), (1, 2, [0, 1])],
)
def test_pretended_devices_are_real_ones(
    foreign: Foreign, ranks_per_device: int, real: int, places: list[int]
) -> None:
    told = foreign("plugins", "share_devices", ranks_per_device=ranks_per_device, real=real)
    assert told["count"] == len(places)
    assert told["places"] == [f"device {place}" for place in places]
