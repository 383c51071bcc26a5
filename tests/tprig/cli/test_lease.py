from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

import gpu_scheduler
from gpu_scheduler import nvml
from tests.fakes.nvml import FakeNvml, host_of
from tprig.cli import lease as command
from tprig.cli import main


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = host_of(2)
    monkeypatch.setattr(nvml, "pynvml", fake)
    monkeypatch.setenv("TPRIG_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def leased(*words: str) -> int:
    return main(["lease", *words])


def test_the_command_gets_the_devices(capfd: pytest.CaptureFixture[str]) -> None:
    assert leased("-n", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER") == 0
    printed = capfd.readouterr()
    assert printed.out == "0,1 PCI_BUS_ID\n"
    assert printed.err == ""


def test_one_device_by_default_and_the_commands_own_options_are_its_own(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert leased("sh", "-c", "echo $CUDA_VISIBLE_DEVICES $0", "--wait") == 0
    assert capfd.readouterr().out == "0 --wait\n"


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 125])
def test_its_exit_code_is_returned(code: int) -> None:
    assert leased("--", "sh", "-c", f"exit {code}") == code
    with gpu_scheduler.lease(2, kind="cuda", test="after", wait_s=0):
        pass


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["-n", "3"], "2 cuda device(s) usable by this process"),
        (["--min-free-gib", "500"], "0 of them large enough"),
        (["-n", "2", "--topology", "nvlink"], "NVLink"),
        (["-n", "99999", "--kind", "cpu"], "cpu device(s) usable"),
    ],
)
def test_what_can_never_be_had_is_125(
    words: list[str], found: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert leased(*words, "--", "echo", "ran") == 125
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "tprig lease: no lease\nexpected: " in printed.err
    assert found in printed.err


def test_waiting_in_vain_is_125_and_names_the_holder(capfd: pytest.CaptureFixture[str]) -> None:
    with gpu_scheduler.lease(2, kind="cuda", test="test_x", wait_s=0):
        assert leased("--wait", "0.1", "--", "true") == 125
    told = capfd.readouterr().err
    assert "within 0.1 s" in told
    assert f"pid {os.getpid()} (alive) for test_x" in told


def test_who_is_waited_for_is_told_meanwhile(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = command._tell

    def tell_once(blocked: gpu_scheduler.Blocked) -> None:
        tell(blocked)
        raise EOFError

    monkeypatch.setattr(command, "_tell", tell_once)
    with (
        gpu_scheduler.lease(2, kind="cuda", test="test_x", wait_s=0),
        pytest.raises(EOFError),
    ):
        command.run(
            ["true"], count=1, kind="cuda", min_free_gib=None, topology=None, wait_s=math.inf
        )
    told = capfd.readouterr().err
    assert "waiting for 1 cuda device(s) for tprig lease, at position 1 of the queue" in told
    assert f"pid {os.getpid()} (alive) for test_x" in told


@pytest.mark.parametrize(
    ("command", "code", "found"),
    [("/no/such/command", 127, "No such file"), ("/", 126, "Permission denied")],
)
def test_a_command_that_cannot_be_run_is_what_a_shell_says(
    command: str, code: int, found: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert leased("--", command) == code
    assert capfd.readouterr().err == f"tprig lease: {command}: {found}" + (
        " or directory\n" if code == 127 else "\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["-n", "0", "--", "true"],
        ["-n", "x", "--", "true"],
        ["--wait", "-1", "--", "true"],
        ["--wait", "nan", "--", "true"],
        ["--min-free-gib", "nan", "--", "true"],
        ["--min-free-gib", "inf", "--", "true"],
        ["--topology", "ring", "--", "true"],
        ["--nonsense", "--", "true"],
    ],
)
def test_wrong_usage_is_4(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert leased(*words) == 4
    told = capfd.readouterr().err
    assert "Error: " in told
    assert "Traceback" not in told
