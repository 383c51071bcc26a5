"""The client's end of a message channel: typed messages, bounded waits."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

M = TypeVar("M")

READ_BYTES = 1 << 18


class PeerGoneError(Exception):
    """The process at the other end has closed the channel."""


class WaitExpiredError(Exception):
    """Nothing came in time."""


class Wire(Generic[M]):
    """One end of a stream socket that carries JSON lines of a union of structs."""

    def __init__(self, sock: socket.socket, union: Any) -> None:  # noqa: ANN401 - a type form
        self._socket = sock
        self._decoder: msgspec.json.Decoder[M] = msgspec.json.Decoder(union)
        self._buffer = bytearray()
        self._scanned = 0

    def fileno(self) -> int:
        """The descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one message, with descriptors where the peer takes them.

        Raises:
            PeerGoneError: if the other end is closed.
        """
        data = msgspec.json.encode(message) + b"\n"
        try:
            if fds:
                sent = socket.send_fds(self._socket, [data], list(fds))
                data = data[sent:]
            self._socket.sendall(data)
        except OSError as error:
            raise PeerGoneError(str(error)) from error

    def receive(self, timeout_s: float, watched: Sequence[int] = ()) -> M | int:
        """The next message, or the first of the watched descriptors that became readable.

        A message that is already here comes first.

        Raises:
            PeerGoneError: if the other end is closed.
            WaitExpiredError: if nothing came within the time.
        """
        deadline_s = time.monotonic() + timeout_s
        while (line := self._line()) is None:
            left_s = max(0.0, deadline_s - time.monotonic())
            mine = self.fileno()
            readable, _, _ = select.select([mine, *watched], [], [], left_s)
            if mine in readable:
                self._read()
            elif readable:
                return readable[0]
            else:
                raise WaitExpiredError(f"no message within {timeout_s:g} s")
        message: M = self._decoder.decode(line)
        return message

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._scanned)
        if end < 0:
            self._scanned = len(self._buffer)
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._scanned = 0
        return line

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except ConnectionError as error:
            raise PeerGoneError(str(error)) from error
        if not data:
            raise PeerGoneError("the channel was closed")
        self._buffer += data

    def close(self) -> None:
        """Close this end; the peer sees the end of the channel."""
        self._socket.close()
