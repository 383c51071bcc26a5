from __future__ import annotations

import time
from dataclasses import replace

import pytest
from rich.console import Console

from gpu_scheduler import DeviceStatus, ForeignProcess, GpuProcess, Owner, Quarantine, Waiting
from gpu_scheduler.simulate import virtual_gpus
from tprig.report.devices import devices

(GPU,) = virtual_gpus(1)
FREE = DeviceStatus(device=GPU, holder=None, quarantine=None, foreign=(), queue=())


def owner(test: str) -> Owner:
    return replace(Owner.current(test), user="ann", command="pytest")


def shown(*found: DeviceStatus) -> list[str]:
    console = Console(width=220, highlight=False)
    with console.capture() as captured:
        console.print(devices(found))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_free_device() -> None:
    header, line = shown(FREE)
    assert header.split() == ["device", "name", "memory", "free", "state"]
    assert line.split() == ["GPU-00000000", "0", "virtual", "80.0", "of", "80.0", "GiB", "free"]


def test_unknown_memory_is_not_zero() -> None:
    blind = replace(GPU, memory_total_bytes=None, memory_used_bytes=None)
    assert "? of ? GiB" in shown(replace(FREE, device=blind))[1]


def test_holder_and_queue_are_named() -> None:
    waits = Waiting(position=2, count=4, owner=owner("test_wide"))
    lines = shown(replace(FREE, holder=owner("test_x"), queue=(waits,)))
    assert "leased by ann@" in lines[1]
    assert "for test_x, " in lines[1]
    assert "waits at position 2: ann@" in lines[2]
    assert "for test_wide, " in lines[2]
    assert not any(line.endswith("free") for line in lines[1:])


def test_a_free_device_for_which_somebody_waits_is_free() -> None:
    waits = Waiting(position=1, count=8, owner=owner("test_wide"))
    lines = shown(replace(FREE, queue=(waits,)))
    assert lines[1].endswith("free")
    assert "waits at position 1" in lines[2]


def test_quarantine_and_foreign_processes_are_named() -> None:
    barred = Quarantine(
        device_id=GPU.id,
        reason="leaked by test_y",
        user="bob",
        boot_id="b",
        since_unix_s=time.time(),
        expires_unix_s=time.time() + 60,
        expires_boot_s=time.clock_gettime(time.CLOCK_BOOTTIME) + 60,
    )
    known = ForeignProcess(
        process=GpuProcess(pid=7, used_bytes=3 * 1024**3), description="pid 7 (eve: train)"
    )
    silent = ForeignProcess(process=GpuProcess(pid=8, used_bytes=None), description="pid 8")
    lines = shown(replace(FREE, quarantine=barred, foreign=(known, silent)))
    assert "in quarantine by bob until" in lines[1]
    assert "leaked by test_y" in lines[1]
    assert lines[2].strip() == "used without a lease by pid 7 (eve: train), 3.0 GiB"
    assert lines[3].strip() == "used without a lease by pid 8"


@pytest.mark.parametrize("text", ["\x1b[31mred", "[bold]b[/bold]", "a\nb"])
def test_what_others_wrote_steers_no_terminal(text: str) -> None:
    lines = shown(replace(FREE, holder=owner(text)))
    assert len(lines) == 2
    assert "\x1b" not in lines[1]
