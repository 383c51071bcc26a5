"""Serves calls in an interpreter that has imported vLLM, each in a fork of its own.

A call may patch what it likes: nothing of it is left for the next one.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import traceback
from typing import Any

from tprig_inject import process, template


def main(descriptor: int) -> None:
    """Import vLLM once, then answer one line with one line until the other end is closed."""
    with socket.socket(fileno=descriptor).makefile("rwb") as channel:
        _answer(channel, {"value": template.warm_up()})
        for line in channel:
            _answer(channel, _in_fork(json.loads(line)))


def _answer(channel: Any, message: dict[str, Any]) -> None:
    channel.write(json.dumps(message).encode() + b"\n")
    channel.flush()


def _in_fork(request: dict[str, Any]) -> dict[str, Any]:
    ours, theirs = os.pipe()
    me = os.getpid()
    pid = os.fork()
    if not pid:
        process.die_with_parent(me)
        os.close(ours)
        with os.fdopen(theirs, "w") as pipe:
            json.dump(_call(request), pipe)
        sys.stderr.flush()
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    if not text:
        return {"error": f"the call ended with exit code {os.waitstatus_to_exitcode(status)}"}
    answer: dict[str, Any] = json.loads(text)
    return answer


def _call(request: dict[str, Any]) -> dict[str, Any]:
    try:
        module = importlib.import_module(f"tests.tprig.inject.foreign.{request['module']}")
        return {"value": getattr(module, request["function"])(**request["arguments"])}
    except BaseException:
        return {"error": traceback.format_exc()}


if __name__ == "__main__":
    main(int(sys.argv[1]))
