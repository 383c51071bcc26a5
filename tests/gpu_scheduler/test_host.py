from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from gpu_scheduler import host


def test_start_token_tells_processes_apart() -> None:
    token = host.start_token(os.getpid())
    assert token is not None
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    started_s = psutil.Process().create_time() - psutil.boot_time()
    assert token / ticks_per_s == pytest.approx(started_s, abs=2)


def test_start_token_reads_past_a_command_with_parentheses_and_spaces() -> None:
    script = "open('/proc/self/comm', 'w').write('a) R (b'); print('x', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "x\n"
        token, own = host.start_token(process.pid), host.start_token(os.getpid())
        process.kill()
    assert token is not None
    assert own is not None
    assert token >= own


def test_process_that_waits_to_be_reaped_does_not_run() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert host.is_running(process.pid) is False
        assert host.start_token(process.pid) is None
    assert host.is_running(process.pid) is False


def test_this_process_runs() -> None:
    assert host.is_running(os.getpid()) is True


def test_hidden_process_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_process_stat", lambda _pid: None)
    assert host.is_running(os.getpid()) is None


def test_core_slots_are_this_process_affinity() -> None:
    slots = host.core_slots()
    assert [slot.core for slot in slots] == sorted(os.sched_getaffinity(0))
    assert len({slot.id for slot in slots}) == len(slots)
    shares = [slot.memory_capacity_bytes or 0 for slot in slots]
    assert 0 < sum(shares) <= psutil.virtual_memory().total


def test_user_without_a_name_is_a_number() -> None:
    assert host.user_name(4_000_000_001) == "4000000001"


def test_describe_says_whose_process_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "pid_namespace", lambda: 0xEFFFFFFC)
    said = host.describe_process(os.getpid())
    assert psutil.Process().username() in said
    assert f"pid {os.getpid()} " in said


def test_describe_guesses_nothing_from_inside_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "pid_namespace", lambda: 4026532000)
    assert host.describe_process(os.getpid()) == f"pid {os.getpid()} of the host"
