from __future__ import annotations

import os

import pynvml

from gpu_scheduler.leaks import SLACK_BYTES
from gpu_scheduler.scheduler import Lease, lease
from tests.fakes.nvml import GIB, FakeNvml


def gpus(count: int) -> Lease:
    return lease(count, kind="cuda", test="mine", wait_s=0)


def test_what_is_given_back_is_no_leak(host: FakeNvml) -> None:
    host.gpus[0].used_bytes = 300 * 1024**2
    with gpus(2) as held:
        assert held.leaks(0) == ()
        host.gpus[0].used_bytes += SLACK_BYTES
        assert held.leaks(0) == ()


def test_memory_that_comes_back_late_is_waited_for(host: FakeNvml) -> None:
    """The driver returns memory after the process is gone (vLLM 57362)."""
    with gpus(1) as held:
        host.gpus[0].used_bytes = 40 * GIB
        seen = host.sessions

        def give_back(sessions: int) -> None:
            if sessions == seen + 3:
                host.gpus[0].used_bytes = 0

        host.on_init = give_back
        assert held.leaks(60) == ()
        assert host.sessions == seen + 3


def test_memory_that_stays_is_a_leak_of_that_device(host: FakeNvml) -> None:
    host.gpus[1].used_bytes = GIB // 2
    with gpus(2) as held:
        host.gpus[1].used_bytes = 3 * GIB
        (leak,) = held.leaks(0)
    assert leak.device_id == host.gpus[1].uuid
    assert (leak.baseline_bytes, leak.used_bytes) == (GIB // 2, 3 * GIB)
    assert "3.0 GiB in use" in str(leak)
    assert "0.5 GiB when it was leased" in str(leak)
    assert "no process shows" in str(leak)


def test_process_that_stays_is_a_leak_and_named(host: FakeNvml) -> None:
    with gpus(1) as held:
        host.gpus[0].processes = [(os.getppid(), None)]
        (leak,) = held.leaks(0)
    assert [each.pid for each in leak.processes] == [os.getppid()]
    assert f"held by pid {os.getppid()}" in str(leak)


def test_gpu_that_is_lost_cannot_be_judged_and_is_told(host: FakeNvml) -> None:
    with gpus(1) as held:
        host.gpus[0].error = pynvml.NVML_ERROR_GPU_IS_LOST
        (leak,) = held.leaks(0)
    assert leak.used_bytes is None
    assert "GPU is lost" in str(leak)


def test_unknown_memory_is_no_leak_by_itself(host: FakeNvml) -> None:
    host.missing = frozenset({"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"})
    with gpus(1) as held:
        assert held.leaks(0) == ()


def test_cores_leak_nothing(host: FakeNvml) -> None:
    with lease(1, kind="cpu", test="mine", wait_s=0) as held:
        assert held.leaks(0) == ()
    assert host.sessions == 0
