"""The client's end of a message channel: typed messages, bounded waits."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

M = TypeVar("M")

READ_BYTES = 1 << 18
LINE_BYTES_MAX = 1 << 28
"""A step's emissions with the logprobs of a whole vocabulary stay far below this."""
SEND_DEADLINE_S = 60.0
SHOWN_BYTES = 120


class PeerGoneError(Exception):
    """The process at the other end has closed the channel."""


class WaitExpiredError(Exception):
    """The process at the other end neither sent nor took anything in time."""


class MalformedMessageError(Exception):
    """What came is not one of the messages that may come."""


class Wire(Generic[M]):
    """One end of a stream socket that carries JSON lines of a union of structs.

    One thread receives at a time.

    Args:
        sock: is owned from now on.
        union: the messages that may come.
        line_bytes_max: a longer line is malformed.
        send_deadline_s: longest wait for the peer to take a message.
    """

    def __init__(
        self,
        sock: socket.socket,
        union: Any,  # noqa: ANN401 - a type form
        *,
        line_bytes_max: int = LINE_BYTES_MAX,
        send_deadline_s: float = SEND_DEADLINE_S,
    ) -> None:
        self._socket = sock
        self._socket.settimeout(send_deadline_s)
        self._decoder: msgspec.json.Decoder[M] = msgspec.json.Decoder(union)
        self._line_bytes_max = line_bytes_max
        self._buffer = bytearray()
        self._scanned = 0

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one message, with descriptors where the peer takes them.

        Raises:
            PeerGoneError: if the other end is closed.
            WaitExpiredError: if the peer does not take it.
        """
        data = msgspec.json.encode(message) + b"\n"
        try:
            if fds:
                sent = socket.send_fds(self._socket, [data], list(fds))
                data = data[sent:]
            self._socket.sendall(data)
        except TimeoutError as error:
            raise WaitExpiredError(
                f"a message was not taken within {self._socket.gettimeout():g} s"
            ) from error
        except OSError as error:
            raise PeerGoneError(str(error)) from error

    def receive(self, timeout_s: float, watched: Iterable[int] = ()) -> M | int:
        """The next message, or the first of the watched descriptors that became readable.

        A message that is already here comes first.

        Raises:
            PeerGoneError: if the other end is closed.
            WaitExpiredError: if nothing came within the time.
            MalformedMessageError: if what came is no message; the channel is of no more use.
        """
        deadline_s = time.monotonic() + timeout_s
        watched = list(watched)
        while (line := self._line()) is None:
            mine = self._socket.fileno()
            readable = poll([mine, *watched], max(0.0, deadline_s - time.monotonic()))
            if mine in readable:
                self._read()
            elif readable:
                return readable[0]
            else:
                raise WaitExpiredError(f"no message within {timeout_s:g} s")
        return self._decode(line)

    def _decode(self, line: bytes) -> M:
        try:
            return self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessageError(
                f"expected a message, found {_shown(line)}: {error}"
            ) from error

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._scanned)
        if end < 0:
            self._scanned = len(self._buffer)
            if self._scanned > self._line_bytes_max:
                raise MalformedMessageError(
                    f"expected lines of at most {self._line_bytes_max} bytes, found a longer one "
                    f"that begins with {_shown(self._buffer)}"
                )
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._scanned = 0
        return line

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except OSError as error:
            raise PeerGoneError(str(error)) from error
        if not data:
            raise PeerGoneError("the channel was closed")
        self._buffer += data

    def close(self) -> None:
        """Close this end; the peer sees the end of the channel."""
        self._socket.close()


def poll(descriptors: Sequence[int], timeout_s: float) -> list[int]:
    """Those of the descriptors that can be read, or are at their end, in the order given."""
    # Not `select`, which takes no descriptor above 1023.
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    ready = {descriptor for descriptor, _ in poller.poll(timeout_s * 1000)}
    return [descriptor for descriptor in descriptors if descriptor in ready]


def _shown(data: bytes | bytearray) -> str:
    return f"{bytes(data[:SHOWN_BYTES])!r}{'...' if len(data) > SHOWN_BYTES else ''}"
