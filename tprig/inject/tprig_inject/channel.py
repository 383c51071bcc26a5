"""Messages between the client and the processes that own engines: JSON objects, one a line."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any


class Channel:
    """One end of a connected stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = b""

    def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        Raises:
            OSError: if the other end is gone.
        """
        self._socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next message; None when the other end is gone."""
        while b"\n" not in self._buffer:
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (message := self.receive()) is not None:
            yield message

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
