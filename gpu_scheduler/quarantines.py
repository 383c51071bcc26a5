"""Devices that nobody is to be given for a while, and why.

A quarantine is a file beside the device's lock. It ends by itself when it expires or when the host
is booted anew, which is what frees a GPU's memory for certain.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

import msgspec

from gpu_scheduler import host
from gpu_scheduler.errors import QuarantineError
from gpu_scheduler.locks import LockFolder

_SUFFIX = "quarantine"
_MAX_REASON = 2048


class Quarantine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a device is not handed out, and until when."""

    device_id: str
    reason: str
    user: str
    """Who put it there."""
    boot_id: str
    since_unix_s: float
    expires_unix_s: float
    """For people, who may set that clock."""
    expires_boot_s: float
    """When it ends, by the host's clock since its boot."""

    def __str__(self) -> str:
        until = datetime.fromtimestamp(self.expires_unix_s, UTC).isoformat(timespec="seconds")
        return host.printable(f"in quarantine by {self.user} until {until}: {self.reason}")


def quarantine(device_id: str, reason: str, expires_s: float) -> Quarantine:
    """Keeps a device from being handed out; whoever holds it keeps it. Replaces an earlier one.

    Args:
        device_id: `Device.id`.
        reason: Shown to those who wait for the device.
        expires_s: Seconds from now after which it ends by itself.

    Raises:
        LockFolderError: The lock folder cannot be used.
        QuarantineError: It cannot be written down, or would never hold.
    """
    if not 0 < expires_s < float("inf"):
        raise QuarantineError(
            expected="a quarantine that lasts some seconds",
            found=f"{expires_s:g} s",
            rule="a quarantine ends by itself, so that nobody has to remember it",
            remedy="name a positive number of seconds",
        )
    now_s = time.time()
    record = Quarantine(
        device_id=device_id,
        reason=reason[:_MAX_REASON],
        user=host.user_name(os.geteuid()),
        boot_id=host.boot_id(),
        since_unix_s=now_s,
        expires_unix_s=now_s + expires_s,
        expires_boot_s=time.clock_gettime(time.CLOCK_BOOTTIME) + expires_s,
    )
    folder = LockFolder.default()
    folder.write_file(device_id, _SUFFIX, msgspec.json.encode(record))
    if read(folder, device_id) != record:
        raise QuarantineError(
            expected=f"a record of the quarantine of {device_id} in {folder.path}",
            found="it cannot be written, or reads back as another",
            rule="a quarantine that nobody can read keeps nobody away",
            remedy="make room on the disk, and see who may write the file",
        )
    return record


def lift_quarantine(device_id: str) -> Quarantine | None:
    """Ends a quarantine; returns what it was, `None` when there was none.

    Raises:
        LockFolderError: The lock folder cannot be used.
        QuarantineError: It cannot be taken away.
    """
    folder = LockFolder.default()
    lifted = read(folder, device_id)
    if lifted is not None:
        folder.write_file(device_id, _SUFFIX, b"")
        if read(folder, device_id) is not None:
            raise QuarantineError(
                expected=f"to take away the record of {device_id}'s quarantine in {folder.path}",
                found="it is still there",
                rule="whoever may write the file may end the quarantine",
                remedy="see who may write the file",
            )
    return lifted


def read(folder: LockFolder, device_id: str) -> Quarantine | None:
    """Returns the quarantine in force; one that is over, or not readable as one, is `None`."""
    data = folder.read_file(device_id, _SUFFIX)
    if not data:
        return None
    try:
        found = msgspec.json.decode(data, type=Quarantine)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    over = found.boot_id != host.boot_id() or found.expires_boot_s <= now_s
    return None if over or found.device_id != device_id else found
