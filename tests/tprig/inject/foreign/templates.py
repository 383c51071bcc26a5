"""Runs the warm template's loop for real, with hosts that do as they are told."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any

from tprig_inject import host, template
from tprig_inject.channel import Channel


def start(error: str | None = None) -> list[dict[str, Any]]:
    """What a template says when it starts, and that it ends with its client.

    Args:
        error: what importing vLLM raises; None for an interpreter that has vLLM.
    """

    def warm_up() -> dict[str, Any]:
        raise ImportError(error)

    if error is not None:
        template.warm_up = warm_up
    ours, theirs = socket.socketpair()
    ours.shutdown(socket.SHUT_WR)
    sys.argv = ["template", "--socket", str(theirs.detach())]
    template.main()
    return list(Channel(ours))


def serve(hosts: list[dict[str, Any]]) -> dict[str, Any]:
    """Have a template fork some hosts.

    Args:
        hosts: what each one does: `echo` its request and exit with a `code`, be `killed`, or
            `raise`.

    Returns:
        What the template `told`, what the hosts `echoed`, and whether each led a `session`.
    """

    def main(channel: Channel, request: dict[str, Any]) -> int:
        if request.get("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if request.get("raise"):
            raise RuntimeError("an error of ours")
        channel.send({"request": request, "session": os.getsid(0) == os.getpid()})
        return int(request["code"])

    host.main = main
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        ours.close()
        template.serve(theirs, Channel(theirs))
        os._exit(0)
    theirs.close()
    client = Channel(ours)
    told, echoed = [], []
    for request in hosts:
        near, far = socket.socketpair()
        with far:
            socket.send_fds(ours, [json.dumps(request).encode() + b"\n"], [far.fileno()])
        # The host's end and the forked host come before anything about the next one.
        told += [client.receive(), client.receive()]
        echoed += list(Channel(near))
    ours.close()
    _, status = os.waitpid(pid, 0)
    return {"told": told, "echoed": echoed, "code": os.waitstatus_to_exitcode(status)}
