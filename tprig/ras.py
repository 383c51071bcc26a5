"""Asks NCCL's own watch over its jobs (RAS) what it knows, where there is one.

Since NCCL 2.24 each process of a job answers on a socket in a protocol of text, of which NVIDIA's
client `ncclras` is one speaker: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
What it says is kept as it stands, beside what we recorded ourselves: it counts operations, where we
tell them apart, and nothing of ours rests on it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

PORT = 28028
PROTOCOL = 2
ANSWERS_S = 2
"""Within which NCCL's processes must answer one another."""
DEADLINE_S = 5.0
"""For all that is asked, with what is answered."""
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Address:
    """Where NCCL answers."""

    host: str = "localhost"
    port: int = PORT

    @staticmethod
    def of(environment: Mapping[str, str]) -> Address | None:
        """The address in a job's environment; None where it has switched the answers off.

        An address that cannot be read counts as NCCL's default, which NCCL then takes as well.
        """
        if environment.get("NCCL_RAS_ENABLE", "1") == "0":
            return None
        host, _, port = environment.get("NCCL_RAS_ADDR", "").rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            return Address()
        return Address(host.removeprefix("[").removesuffix("]"), int(port))


def status(address: Address, deadline_s: float = DEADLINE_S) -> bytes | None:
    """What NCCL says of its jobs, in words; None where nobody answers in its protocol.

    Args:
        address: where it is asked.
        deadline_s: after which what was said so far must do.
    """
    end_s = time.monotonic() + deadline_s
    place = address.host, address.port
    with contextlib.suppress(OSError), socket.create_connection(place, deadline_s) as peer:
        for asked, expected in (
            (f"CLIENT PROTOCOL {PROTOCOL}", b"SERVER PROTOCOL "),
            (f"TIMEOUT {ANSWERS_S}", b"OK"),
        ):
            peer.sendall(f"{asked}\n".encode())
            if not _line(peer, end_s).startswith(expected):
                return None
        peer.sendall(b"VERBOSE STATUS\n")
        return _rest(peer, end_s)
    return None


def _line(peer: socket.socket, end_s: float) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < MOST_BYTES:
        peer.settimeout(_left_s(end_s))
        byte = peer.recv(1)
        if not byte:
            break
        line += byte
    return line


def _rest(peer: socket.socket, end_s: float) -> bytes | None:
    """All that is said until the end, or until there is no time left."""
    said = bytearray()
    with contextlib.suppress(OSError):
        while len(said) < MOST_BYTES:
            peer.settimeout(_left_s(end_s))
            data = peer.recv(min(65536, MOST_BYTES - len(said)))
            if not data:
                break
            said += data
    return bytes(said) or None


def _left_s(end_s: float) -> float:
    """Seconds until then.

    Raises:
        TimeoutError: if there are none.
    """
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
