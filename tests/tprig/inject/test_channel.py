"""Messages between processes: whole, in order, and an end that is heard."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tprig_inject.channel import Channel

from tprig.messages import Crashed, FromHost, Ready
from tprig.wire import Wire

JSON = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(
    st.text()
))  # fmt: skip


class Loop(socket.socket):
    """A socket that receives what it sent, a few bytes at a time, and then its end."""

    def __init__(self, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._sent = b""

    def sendall(self, data: Any, flags: int = 0) -> None:
        self._sent += data

    def recv(self, size: int, flags: int = 0) -> bytes:
        piece, self._sent = self._sent[: self._piece_bytes], self._sent[self._piece_bytes :]
        return piece


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield Channel(ours), theirs
    ours.close()
    theirs.close()


@settings(max_examples=40)
@given(st.lists(JSON, max_size=5), st.integers(1, 7))
def test_messages_arrive_as_they_were_sent_however_they_are_cut(
    messages: list[dict[str, object]], piece_bytes: int
) -> None:
    loop = Loop(piece_bytes)
    for message in messages:
        Channel(loop).send(message)
    assert list(Channel(loop)) == messages


def test_the_end_is_heard(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    other.close()
    assert channel.receive() is None
    with pytest.raises(OSError, match="Broken pipe"):
        channel.send({})


def test_a_peer_that_dies_with_messages_unread_is_gone_too(
    ends: tuple[Channel, socket.socket],
) -> None:
    channel, other = ends
    channel.send({"never": "read"})
    other.close()
    assert channel.receive() is None


def test_half_a_message_is_none(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    other.sendall(b'{"whole": 1}\n{"half": ')
    other.close()
    assert list(channel) == [{"whole": 1}]


def test_both_ends_speak_alike(ends: tuple[Channel, socket.socket]) -> None:
    """The client's end is typed, and the other one cannot import its types."""
    channel, other = ends
    wire: Wire[FromHost] = Wire(other, FromHost)
    channel.send({"type": "ready"})
    channel.send({"type": "crashed", "error": "E", "message": "line\nline \u2028"})
    assert wire.receive(60.0) == Ready()
    assert wire.receive(60.0) == Crashed(error="E", message="line\nline \u2028")
    wire.send({"do": "stop"})
    assert channel.receive() == {"do": "stop"}
