"""What NCCL's RAS says is taken along, from a server that speaks as NCCL's does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tprig.bundle import Writer
from tprig.forensics import RankWatch, Stall
from tprig.ras import MOST_BYTES, Address, status
from tprig.spec import EngineSpec

SAID = b"NCCL version 2.30.4\n\nJob summary\n===========\n rank 1: missing\n"
Serve = Callable[[socket.socket], None]


@contextmanager
def server(serve: Serve) -> Iterator[Address]:
    """Answers one client."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            peer, _ = listening.accept()
            with peer:
                serve(peer)

        thread = threading.Thread(target=answer)
        thread.start()
        yield Address("127.0.0.1", listening.getsockname()[1])
        thread.join()


def speaks(said: bytes, heard: list[str]) -> Serve:
    """NCCL's side of the protocol."""

    def serve(peer: socket.socket) -> None:
        with peer.makefile("rw", newline="\n") as file:
            for answer in ("SERVER PROTOCOL 2\n", "OK\n"):
                heard.append(file.readline())
                file.write(answer)
                file.flush()
            heard.append(file.readline())
        peer.sendall(said)

    return serve


def test_status_is_asked_for_in_the_protocol_and_kept_as_it_stands() -> None:
    heard: list[str] = []
    with server(speaks(SAID, heard)) as address:
        assert status(address) == SAID
    assert heard == ["CLIENT PROTOCOL 2\n", "TIMEOUT 2\n", "VERBOSE STATUS\n"]


def test_a_status_without_end_is_cut() -> None:
    with server(speaks(b"x" * (MOST_BYTES + 10), [])) as address:
        said = status(address)
    assert said is not None
    assert len(said) == MOST_BYTES


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_another_server_is_not_taken_for_it(answer: bytes) -> None:
    def serve(peer: socket.socket) -> None:
        peer.recv(4096)
        peer.sendall(answer)

    with server(serve) as address:
        assert status(address) is None


def test_a_server_that_says_nothing_is_given_up() -> None:
    def serve(peer: socket.socket) -> None:
        while peer.recv(4096):
            pass

    with server(serve) as address:
        assert status(address, deadline_s=0.05) is None


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    assert status(Address("127.0.0.1", port)) is None


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, Address("localhost", 28028)),
        ({"NCCL_RAS_ADDR": "10.0.0.7:999"}, Address("10.0.0.7", 999)),
        ({"NCCL_RAS_ADDR": "[::1]:999"}, Address("::1", 999)),
        ({"NCCL_RAS_ADDR": "10.0.0.7"}, Address()),
        ({"NCCL_RAS_ADDR": "h:99999"}, Address()),
        ({"NCCL_RAS_ENABLE": "0"}, None),
    ],
)
def test_the_address_is_that_of_the_job(
    environment: dict[str, str], address: Address | None
) -> None:
    assert Address.of(environment) == address


def test_what_was_said_is_evidence_of_its_own(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "bundle")
    with server(speaks(SAID, [])) as address:
        RankWatch("r", {}, tmp_path, Stall(), address).save(writer)
    assert (tmp_path / "bundle/runs/r/nccl-ras.txt").read_bytes() == SAID
    RankWatch("s", {}, tmp_path, Stall(), None).save(writer)
    assert not (tmp_path / "bundle/runs/s/nccl-ras.txt").exists()


def test_an_engine_without_a_gpu_has_nobody_to_ask() -> None:
    spec = EngineSpec(model=Path("/model"), platform="cpu")
    assert spec.ras is None
    on_gpu = replace(spec, platform="cuda", environment={"NCCL_RAS_ADDR": "10.0.0.7:999"})
    assert on_gpu.ras == Address("10.0.0.7", 999)
