from __future__ import annotations

import os
from dataclasses import replace

from gpu_scheduler.device import GpuProcess
from gpu_scheduler.placement import Request, capable, objection
from tests.fakes.nvml import GIB
from tests.gpu_scheduler.test_device import gpu

ANY = Request(count=1, kind="cuda", test="t")
FORTY = replace(ANY, min_free_bytes=40 * GIB)


def describe(pid: int) -> str:
    return f"pid {pid} (bob)"


def test_device_too_small_is_never_capable() -> None:
    small, large = gpu(24 * GIB), gpu(80 * GIB)
    assert capable([small, large], FORTY) == (large,)
    assert capable([small, large], ANY) == (small, large)


def test_reserve_counts_against_capacity() -> None:
    assert capable([gpu(40 * GIB, reserved_bytes=1)], FORTY) == ()


def test_unknown_capacity_may_be_enough() -> None:
    assert capable([gpu(None)], FORTY) == (gpu(None),)


def test_idle_device_meets_no_objection() -> None:
    assert objection(gpu(80 * GIB, used_bytes=0), FORTY, describe) is None


def test_foreign_process_is_named_with_what_it_holds() -> None:
    busy = replace(gpu(80 * GIB), processes=(GpuProcess(pid=4711, used_bytes=20 * GIB),))
    reason = objection(busy, ANY, describe)
    assert reason == "in use without a lease by pid 4711 (bob) holding 20.0 GiB"


def test_foreign_process_of_unknown_size_is_named() -> None:
    busy = replace(gpu(80 * GIB), processes=(GpuProcess(pid=4711, used_bytes=None),))
    assert objection(busy, ANY, describe) == "in use without a lease by pid 4711 (bob)"


def test_own_context_is_not_foreign() -> None:
    own = replace(gpu(80 * GIB), processes=(GpuProcess(pid=os.getpid(), used_bytes=GIB),))
    assert objection(own, ANY, describe) is None


def test_too_little_free_memory_says_both_numbers() -> None:
    device = gpu(80 * GIB, used_bytes=50 * GIB)
    assert objection(device, FORTY, describe) == "30.0 GiB free of the 40.0 GiB asked"


def test_exactly_enough_is_enough() -> None:
    device = gpu(80 * GIB, used_bytes=40 * GIB)
    assert objection(device, FORTY, describe) is None


def test_unknown_free_memory_is_not_enough() -> None:
    said = objection(gpu(80 * GIB), FORTY, describe)
    assert said == "an unknown amount free of the 40.0 GiB asked"
    assert objection(gpu(80 * GIB), ANY, describe) is None
