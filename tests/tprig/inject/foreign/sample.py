"""Serves calls of vLLM's rejection sampler in an interpreter that has imported vLLM, without forks.

Calls are many and small: what they patch is the same for all of them.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from multiprocessing.connection import Connection

from tprig_inject import template


def main(descriptor: int) -> None:
    """Answer each call with its result or a traceback, until the other end is closed."""
    with Connection(descriptor) as connection:
        version = template.warm_up()["vllm_version"]
        rejection = importlib.import_module("tests.tprig.inject.foreign.rejection")
        rejection.prepare()
        connection.send(version)
        while True:
            try:
                drawn = connection.recv()
            except EOFError:
                return
            try:
                connection.send(rejection.run(drawn))
            except Exception:
                connection.send(traceback.format_exc())


if __name__ == "__main__":
    main(int(sys.argv[1]))
