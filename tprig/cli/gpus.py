"""`tprig gpus` and `tprig gpus release`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence

from rich.live import Live

import gpu_scheduler
from gpu_scheduler.survey import survey
from tprig.cli.terminal import console, show, silence, write, write_json
from tprig.report.devices import devices
from tprig.report.text import one_line

PASS = 0
NOTHING = 4
"""Exit code when there is nothing to show, or nothing to release."""
WATCH_S = 2.0


def run(kind: gpu_scheduler.Kind, *, as_json: bool, watch: bool) -> int:
    """Show who holds which device and why; return the exit code."""
    try:
        if watch:
            return _watch_json(kind) if as_json else _watch(kind)
        found, note = gpu_scheduler.status(kind), survey(kind).note
    except gpu_scheduler.GpuSchedulerError as error:
        print(f"tprig gpus: {error}", file=sys.stderr)
        return NOTHING
    if as_json:
        write_json(_document(found, note))
    elif found:
        show(devices(found), *([f"not shown: {one_line(note)}"] if note else []))
    else:
        # Asking for one says why there is none.
        request = gpu_scheduler.Request(count=1, kind=kind, test="tprig gpus")
        print(f"tprig gpus: {gpu_scheduler.unsatisfiable(request)}", file=sys.stderr)
    return PASS if found else NOTHING


def _watch(kind: gpu_scheduler.Kind) -> int:
    if not sys.stdout.isatty():
        print("tprig gpus: --watch needs a terminal, or --json beside it", file=sys.stderr)
        return NOTHING
    with Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(devices(gpu_scheduler.status(kind)), refresh=True)
            time.sleep(WATCH_S)


def _watch_json(kind: gpu_scheduler.Kind) -> int:
    """One document on each line, until nobody reads on."""
    with contextlib.suppress(BrokenPipeError):
        while True:
            document = _document(gpu_scheduler.status(kind), survey(kind).note)
            sys.stdout.write(json.dumps(document) + "\n")
            sys.stdout.flush()
            time.sleep(WATCH_S)
    silence()
    return PASS


def release(ids: Sequence[str]) -> int:
    """End quarantines; return 4 when a device is in none."""
    code = PASS
    for id_ in ids:
        try:
            lifted = gpu_scheduler.lift_quarantine(id_)
        except gpu_scheduler.GpuSchedulerError as error:
            print(f"tprig gpus release: {error}", file=sys.stderr)
            return NOTHING
        if lifted is None:
            known = (each.device.id for each in gpu_scheduler.status() if each.quarantine)
            print(
                f"tprig gpus release: {one_line(id_)} is in no quarantine; in one are: "
                f"{', '.join(known) or 'none'}",
                file=sys.stderr,
            )
            code = NOTHING
        else:
            write(f"{one_line(id_)} was {one_line(str(lifted))}; it may be leased again\n")
    return code


def _document(found: Sequence[gpu_scheduler.DeviceStatus], note: str | None) -> dict[str, object]:
    return {"devices": [_device(each) for each in found], "note": note}


def _device(found: gpu_scheduler.DeviceStatus) -> dict[str, object]:
    device = found.device
    gpu = device if isinstance(device, gpu_scheduler.Gpu) else None
    return {
        "id": device.id,
        "index": None if gpu is None else gpu.index,
        "name": None if gpu is None else gpu.name,
        "memory_capacity_bytes": device.memory_capacity_bytes,
        "memory_free_bytes": device.memory_free_bytes,
        "holder": None if found.holder is None else _owner(found.holder),
        "quarantine": None
        if found.quarantine is None
        else {
            "reason": found.quarantine.reason,
            "user": found.quarantine.user,
            "since_unix_s": found.quarantine.since_unix_s,
            "expires_unix_s": found.quarantine.expires_unix_s,
        },
        "foreign": [
            {
                "pid": each.process.pid,
                "used_bytes": each.process.used_bytes,
                "description": each.description,
            }
            for each in found.foreign
        ],
        "queue": [
            {"position": each.position, "count": each.count, "owner": _owner(each.owner)}
            for each in found.queue
        ],
    }


def _owner(owner: gpu_scheduler.Owner) -> dict[str, object]:
    return {
        "user": owner.user,
        "host": owner.host,
        "pid": owner.pid,
        "test": owner.test,
        "command": owner.command,
        "since_unix_s": owner.since_unix_s,
    }
