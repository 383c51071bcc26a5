"""The record of who holds a device: written by the holder, read by those who wait.

It explains a lock and never frees one: the kernel alone decides who holds it. Anyone on the host
can write anything here, so a reader takes it as a claim and tolerates garbage.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from dataclasses import asdict, dataclass

from gpu_scheduler import host

MAX_RECORD_BYTES = 16_384
"""No record is longer: each text is cut to `_MAX_TEXT` characters of at most six bytes."""
_MAX_TEXT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds a device, since when and what for."""

    user: str
    host: str
    boot_id: str
    pid_namespace: int | None
    """Inode of the holder's PID namespace: containers on one host count pids apart."""
    pid: int
    start_token: int | None
    """`host.start_token` of the holder."""
    test: str
    command: str
    since_unix_s: float

    @classmethod
    def current(cls, test: str) -> Owner:
        """Returns the record of this process as the holder from now on."""
        return cls(
            user=host.user_name(os.geteuid()),
            host=socket.gethostname(),
            boot_id=host.boot_id(),
            pid_namespace=host.pid_namespace(),
            pid=os.getpid(),
            start_token=host.start_token(os.getpid()),
            test=test,
            command=host.command_line(),
            since_unix_s=time.time(),
        )

    def __str__(self) -> str:
        fate = {True: "alive", False: "gone", None: "not visible from here"}[is_alive(self)]
        age_s = max(0.0, time.time() - self.since_unix_s)
        who = f"{self.user}@{self.host} pid {self.pid} ({fate})"
        return host.printable(f"{who} for {self.test}, {age_s:.0f} s ago, by: {self.command[:120]}")


def encode(owner: Owner) -> bytes:
    """Returns the record as one line of JSON, at most `MAX_RECORD_BYTES` long."""
    fields = {k: v[:_MAX_TEXT] if isinstance(v, str) else v for k, v in asdict(owner).items()}
    line = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return line.encode("utf-8", "replace") + b"\n"


def parse(data: bytes) -> Owner | None:
    """Reads a record back; whatever is not one, cut short or absurdly long, is `None`."""
    if len(data) > MAX_RECORD_BYTES:
        return None
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.keys() != _CHECKS.keys():
        return None
    if not all(check(fields[name]) for name, check in _CHECKS.items()):
        return None
    return Owner(**fields)


def is_alive(owner: Owner) -> bool | None:
    """Says whether the recorded process still runs.

    Returns:
        False when it is certain that it is gone, `None` when this process cannot see: the holder
        is in another container, or /proc hides other users' processes.
    """
    if owner.host != socket.gethostname():
        return None
    if owner.boot_id != host.boot_id():
        return False
    if owner.pid_namespace != host.pid_namespace():
        return None
    token = host.start_token(owner.pid)
    if token is None:
        return host.is_running(owner.pid)
    return None if owner.start_token is None else token == owner.start_token


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_pid(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_count_or_unknown(value: object) -> bool:
    return value is None or _is_count(value)


def _is_time(value: object) -> bool:
    return type(value) is float and math.isfinite(value)


_CHECKS = {
    "user": _is_text,
    "host": _is_text,
    "boot_id": _is_text,
    "pid_namespace": _is_count_or_unknown,
    "pid": _is_pid,
    "start_token": _is_count_or_unknown,
    "test": _is_text,
    "command": _is_text,
    "since_unix_s": _is_time,
}
