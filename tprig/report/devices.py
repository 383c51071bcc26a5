"""Who holds which device, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

import gpu_scheduler
from tprig.report.text import one_line

_GIB = 1024**3
FREE = "free"


def devices(found: Sequence[gpu_scheduler.DeviceStatus]) -> RenderableType:
    """Return a table: a line for each device, below it who holds it, uses it and waits for it."""
    table = Table(box=None, pad_edge=False)
    table.add_column("device", no_wrap=True)
    table.add_column("name", no_wrap=True)
    table.add_column("memory free", justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    for each in found:
        table.add_row(each.device.id, _name(each.device), _memory(each.device), _state(each))
    return table


def _name(device: gpu_scheduler.Device) -> str:
    if isinstance(device, gpu_scheduler.Gpu):
        return one_line(f"{device.index} {device.name}")
    return "core"


def _memory(device: gpu_scheduler.Device) -> str:
    free, capacity = device.memory_free_bytes, device.memory_capacity_bytes
    return f"{_gib(free)} of {_gib(capacity)} GiB"


def _gib(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else f"{size_bytes / _GIB:.1f}"


def _state(found: gpu_scheduler.DeviceStatus) -> Text:
    lines = list(_lines(found))
    free = Text(FREE, style="green") if not lines else Text()
    waiting = (Text(one_line(f"waits at position {w.position}: {w.owner}")) for w in found.queue)
    return Text("\n").join([*([free] if free else []), *lines, *waiting])


def _lines(found: gpu_scheduler.DeviceStatus) -> Iterator[Text]:
    if found.holder is not None:
        yield Text(one_line(f"leased by {found.holder}"), style="cyan")
    if found.quarantine is not None:
        yield Text(one_line(str(found.quarantine)), style="bold red")
    for each in found.foreign:
        used = "" if each.process.used_bytes is None else f", {_gib(each.process.used_bytes)} GiB"
        yield Text(one_line(f"used without a lease by {each.description}{used}"), style="yellow")
