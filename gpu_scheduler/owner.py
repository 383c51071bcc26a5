"""The record of who holds a device: written by the holder, read by those who wait.

It explains a lock and never frees one: the kernel alone decides who holds it. Anyone on the host
can write anything here, so a reader takes it as a claim and tolerates garbage.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated

import msgspec

from gpu_scheduler import host

LEASE_ID_VARIABLE = "TPRIG_LEASE_ID"
"""In the environment of what a holder starts on leased devices: by whose lease it is there."""

MAX_RECORD_BYTES = 16_384
"""No record is longer: each text is cut to `_MAX_TEXT` characters of at most six bytes."""
_MAX_TEXT = 512


_Text = Annotated[str, msgspec.Meta(max_length=_MAX_TEXT)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Pid = Annotated[int, msgspec.Meta(gt=0, lt=2**31)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds a device, since when and what for."""

    user: _Text
    host: _Text
    boot_id: _Text
    pid_namespace: _Count | None
    """Inode of the holder's PID namespace: containers on one host count pids apart."""
    pid: _Pid
    start_token: _Count | None
    """`host.start_token` of the holder."""
    test: _Text
    command: _Text
    since_unix_s: float
    lease_id: _Text | None = None
    """What the holder's children carry in their environment, see `LEASE_ID_VARIABLE`."""

    @classmethod
    def current(cls, test: str, lease_id: str | None = None) -> Owner:
        """Returns the record of this process as the holder from now on."""
        # What does not change in a process is looked up once; after a fork it is another one.
        process = _process(os.getpid(), os.geteuid())
        return replace(process, test=test, lease_id=lease_id, since_unix_s=time.time())

    def __str__(self) -> str:
        fate = {True: "alive", False: "gone", None: "not visible from here"}[is_alive(self)]
        age_s = max(0.0, time.time() - self.since_unix_s)
        who = f"{self.user}@{self.host} pid {self.pid} ({fate})"
        return host.printable(f"{who} for {self.test}, {age_s:.0f} s ago, by: {self.command[:120]}")


@cache
def _process(pid: int, uid: int) -> Owner:
    return Owner(
        user=host.user_name(uid),
        host=socket.gethostname(),
        boot_id=host.boot_id(),
        pid_namespace=host.pid_namespace(),
        pid=pid,
        start_token=host.start_token(pid),
        test="",
        command=host.command_line(),
        since_unix_s=0.0,
    )


def encode(owner: Owner) -> bytes:
    """Returns the record as one line of JSON, at most `MAX_RECORD_BYTES` long."""
    return msgspec.json.encode(cut(owner)) + b"\n"


def cut(owner: Owner) -> Owner:
    """Returns the record with texts as short as a record may have, and of characters that are."""
    return replace(
        owner,
        user=_text(owner.user),
        host=_text(owner.host),
        test=_text(owner.test),
        command=_text(owner.command),
    )


def _text(text: str) -> str:
    return text[:_MAX_TEXT].encode("utf-8", "replace").decode()


def parse(data: bytes) -> Owner | None:
    """Reads a record back; whatever is not one, cut short or absurdly long, is `None`."""
    if len(data) > MAX_RECORD_BYTES:
        return None
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


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


_DECODER = msgspec.json.Decoder(Owner)
