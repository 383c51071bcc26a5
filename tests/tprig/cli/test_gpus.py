from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

import gpu_scheduler
from gpu_scheduler import nvml
from tests.fakes.nvml import FakeNvml, host_of
from tprig.cli import main

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = host_of(2)
    monkeypatch.setattr(nvml, "pynvml", fake)
    monkeypatch.setenv("TPRIG_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_table_names_holders(host: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    with gpu_scheduler.lease(1, kind="cuda", test="test_x", wait_s=0):
        assert main(["gpus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert host.gpus[0].uuid in lines[1]
    assert f"pid {os.getpid()} (alive) for test_x" in lines[1]
    assert lines[-1].split()[-1] == "free"


def test_json_says_the_same(host: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    gpu_scheduler.quarantine(host.gpus[1].uuid, "leaked", 60)
    with gpu_scheduler.lease(1, kind="cuda", test="test_x", wait_s=0):
        assert main(["gpus", "--json"]) == 0
    held, barred = json.loads(capsys.readouterr().out)["devices"]
    assert held["id"] == host.gpus[0].uuid
    assert (held["index"], held["name"]) == (0, host.gpus[0].name)
    assert held["memory_free_bytes"] == held["memory_capacity_bytes"]
    assert (held["holder"]["pid"], held["holder"]["test"]) == (os.getpid(), "test_x")
    assert (held["quarantine"], held["foreign"], held["queue"]) == (None, [], [])
    assert barred["holder"] is None
    assert barred["quarantine"]["reason"] == "leaked"


def test_processes_without_a_lease_are_in_both(
    host: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    host.gpus[0].processes = [(os.getppid(), None)]
    main(["gpus"])
    assert f"used without a lease by pid {os.getppid()}" in capsys.readouterr().out
    main(["gpus", "--json"])
    (foreign,) = json.loads(capsys.readouterr().out)["devices"][0]["foreign"]
    assert foreign["pid"] == os.getppid()
    assert foreign["used_bytes"] is None


def test_cores_are_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "--kind", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["devices"]
    assert [each["id"] for each in found] == [each.id for each in gpu_scheduler.core_slots()]
    assert {each["index"] for each in found} == {None}


def test_no_gpu_is_4_with_the_reason(host: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    host.gpus = []
    assert main(["gpus"]) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "shows no GPU" in printed.err
    assert main(["gpus", "--json"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert document["devices"] == []
    assert "shows no GPU" in document["note"]


def test_a_gpu_that_cannot_be_read_is_not_passed_over(
    host: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    host.gpus[1].error = pynvml.NVML_ERROR_GPU_IS_LOST
    assert main(["gpus"]) == 0
    *table, note = capsys.readouterr().out.splitlines()
    assert len(table) == 2
    assert note.startswith("not shown: GPU 1 by NVML's count: GPU is lost")
    main(["gpus", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert len(document["devices"]) == 1
    assert "GPU is lost" in document["note"]


def test_a_lock_folder_that_cannot_be_used_is_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TPRIG_LOCK_DIR", str(tmp_path / "file"))
    assert main(["gpus"]) == 4
    assert "expected: a folder of lock files" in capsys.readouterr().err


def test_watching_needs_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "--watch"]) == 4
    assert "needs a terminal, or --json" in capsys.readouterr().err


def test_watching_as_json_ends_when_nobody_reads_on(host: FakeNvml) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tprig", "gpus", "--watch", "--json"],
        env=os.environ | host.environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(json.loads(process.stdout.readline())["devices"]) == 2
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_a_quarantine_is_ended(host: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [gpu.uuid for gpu in host.gpus]
    for each in ids:
        gpu_scheduler.quarantine(each, "leaked", 60)
    words = [word for each in ids for word in ("--quarantine", each)]
    assert main(["gpus", "release", *words]) == 0
    assert [each.quarantine for each in gpu_scheduler.status()] == [None, None]
    assert capsys.readouterr().out.count("leaked; it may be leased again\n") == 2


def test_what_is_in_no_quarantine_is_4_and_named(
    host: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu_scheduler.quarantine(host.gpus[0].uuid, "leaked", 60)
    assert main(["gpus", "release", "--quarantine", "GPU-none"]) == 4
    assert capsys.readouterr().err == (
        f"tprig gpus release: GPU-none is in no quarantine; in one are: {host.gpus[0].uuid}\n"
    )
