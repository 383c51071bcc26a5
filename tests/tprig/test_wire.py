from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tprig import evidence, messages
from tprig.wire import MalformedMessageError, PeerGoneError, WaitExpiredError, Wire, poll

PATIENCE_S = 30.0
SOON_S = 0.05
DONE = b'{"type":"done","elapsed_ns":%d}\n'

Ends = tuple[Wire[messages.FromHost], socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The client's wire and the peer's bare socket."""
    ours, theirs = socket.socketpair()
    wire: Wire[messages.FromHost] = Wire(ours, messages.FromHost, line_bytes_max=1 << 20)
    with theirs:
        yield wire, theirs
        wire.close()


def done(wire: Wire[messages.FromHost]) -> int:
    message = wire.receive(PATIENCE_S)
    assert isinstance(message, messages.Done)
    return message.elapsed_ns


def test_several_messages_in_one_piece(ends: Ends) -> None:
    wire, peer = ends
    peer.sendall(DONE % 1 + DONE % 2 + DONE % 3)
    assert [done(wire) for _ in range(3)] == [1, 2, 3]


def test_one_message_in_many_pieces(ends: Ends) -> None:
    wire, peer = ends

    def trickle() -> None:
        for byte in DONE % 7 + DONE % 8:
            peer.sendall(bytes([byte]))

    thread = threading.Thread(target=trickle)
    thread.start()
    assert [done(wire), done(wire)] == [7, 8]
    thread.join()


def test_a_message_much_larger_than_the_socket_s_buffer(ends: Ends) -> None:
    wire, peer = ends
    line = json.dumps({"type": "refused", "error": "E", "message": "x" * 900_000}).encode()
    thread = threading.Thread(target=peer.sendall, args=(line + b"\n" + DONE % 1,))
    thread.start()
    message = wire.receive(PATIENCE_S)
    thread.join()
    assert isinstance(message, messages.Refused)
    assert len(message.message) == 900_000
    assert done(wire) == 1


def test_a_message_that_came_before_the_end_is_still_heard(ends: Ends) -> None:
    wire, peer = ends
    peer.sendall(DONE % 1 + b'{"type":"do')
    peer.close()
    assert done(wire) == 1
    with pytest.raises(PeerGoneError, match="closed"):
        wire.receive(PATIENCE_S)


def test_a_peer_that_says_nothing(ends: Ends) -> None:
    with pytest.raises(WaitExpiredError, match=r"no message within 0\.05 s"):
        ends[0].receive(SOON_S)


def test_half_a_message_does_not_prolong_the_wait(ends: Ends) -> None:
    wire, peer = ends
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(SOON_S / 5):
            peer.sendall(b" ")

    thread = threading.Thread(target=trickle)
    thread.start()
    with pytest.raises(WaitExpiredError):
        wire.receive(SOON_S)
    stop.set()
    thread.join()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"Traceback (most recent call last):",
        b"{",
        b"[]",
        b"null",
        b'{"type":"nonsense"}',
        b'{"type":"done"}',
        b'{"type":"done","elapsed_ns":"soon"}',
        b'{"type":"done","elapsed_ns":1,"more":2}',
        b'{"type":"crashed","error":"E","message":"\xff\xfe"}',
        b'{"type":"step","step":NaN}',
        b"[" * 100_000,
        b"\x00\x80",
    ],
    ids=lambda line: ascii(line[:30]),
)
def test_a_line_that_is_no_message(ends: Ends, line: bytes) -> None:
    wire, peer = ends
    peer.sendall(line + b"\n" + DONE % 1)
    with pytest.raises(MalformedMessageError, match="expected a message, found b") as caught:
        wire.receive(PATIENCE_S)
    assert len(str(caught.value)) < 1000
    assert done(wire) == 1


@given(st.binary(max_size=200).filter(lambda data: b"\n" not in data))
def test_no_bytes_bring_another_error(line: bytes) -> None:
    ours, theirs = socket.socketpair()
    wire: Wire[messages.FromHost] = Wire(ours, messages.FromHost)
    with theirs:
        theirs.sendall(line + b"\n")
        with pytest.raises(MalformedMessageError):
            wire.receive(PATIENCE_S)
    wire.close()


def test_a_line_without_end(ends: Ends) -> None:
    wire, peer = ends

    def send() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer.sendall(b"x" * (1 << 16))

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(MalformedMessageError, match=r"at most 1048576 bytes, found a longer one"):
        wire.receive(PATIENCE_S)
    wire.close()
    thread.join()


def test_a_message_comes_before_what_is_watched(ends: Ends) -> None:
    wire, peer = ends
    read, write = os.pipe()
    os.close(write)
    peer.sendall(DONE % 1)
    assert done_or_descriptor(wire, read) == messages.Done(elapsed_ns=1)
    assert done_or_descriptor(wire, read) == read
    os.close(read)


def done_or_descriptor(wire: Wire[messages.FromHost], watched: int) -> object:
    return wire.receive(PATIENCE_S, [watched])


def test_records_of_the_evidence_come_as_they_are(ends: Ends) -> None:
    wire, peer = ends
    refusal = evidence.Refusal(request="r", error="E", message="no")
    peer.sendall(b'{"type":"refusal","request":"r","error":"E","message":"no"}\n')
    assert wire.receive(PATIENCE_S) == refusal


def test_what_is_sent_is_one_line(ends: Ends) -> None:
    wire, peer = ends
    wire.send({"do": "run", "text": "two\nlines"})
    assert json.loads(peer.makefile("rb").readline()) == {"do": "run", "text": "two\nlines"}


def test_descriptors_are_sent_along_with_a_large_message(ends: Ends) -> None:
    wire, peer = ends
    read, write = os.pipe()
    thread = threading.Thread(target=wire.send, args=({"text": "x" * (1 << 20)}, [write]))
    thread.start()
    data, descriptors, _, _ = socket.recv_fds(peer, 1 << 16, 1)
    while not data.endswith(b"\n"):
        data += peer.recv(1 << 16)
    thread.join()
    assert len(json.loads(data)["text"]) == 1 << 20
    os.write(descriptors[0], b"through")
    assert os.read(read, 7) == b"through"
    for descriptor in (read, write, *descriptors):
        os.close(descriptor)


def test_sending_to_nobody(ends: Ends) -> None:
    wire, peer = ends
    peer.close()
    with pytest.raises(PeerGoneError):
        wire.send({"do": "stop"})


def test_a_peer_that_takes_nothing() -> None:
    ours, theirs = socket.socketpair()
    wire: Wire[messages.FromHost] = Wire(ours, messages.FromHost, send_deadline_s=SOON_S)
    with theirs:
        began_s = time.monotonic()
        with pytest.raises(WaitExpiredError, match=r"not taken within 0\.05 s"):
            wire.send({"text": "x" * (16 << 20)})
        assert time.monotonic() - began_s < PATIENCE_S
    wire.close()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 4096:
        pytest.skip(f"this process may have {before[1]} descriptors, 4096 are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_descriptors")
def test_descriptors_beyond_what_select_takes() -> None:
    read, write = os.pipe()
    high = os.dup2(read, 4000)
    assert poll([high, read], 0) == []
    os.close(write)
    assert poll([high, read], 0) == [4000, read]
    os.close(read)
    os.close(high)


def test_polling_nothing_ends_with_the_time() -> None:
    assert poll([], 0) == []
