"""Cleans up after a run whose own process was killed.

A process that is killed cannot stop its engines. This one outlives it by a moment: it waits for
the end of its standard input, which the run holds open, and then clears what dead owners left.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import Self

from tprig import remains

DISMISSED = b"dismissed"
OWNER_ENDS_S = 10.0
POLL_S = 0.05


class Warden:
    """The warden of this process; as a context manager it is dismissed on leaving."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tprig.warden", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C is sent to the whole foreground group, and must not end it.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()

    def dismiss(self) -> None:
        """Let it go; what this process left behind is cleared by then, if anything was."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(DISMISSED)


def main(owner_pid: int) -> None:
    """Wait until standard input ends; without a word of dismissal the owner is dead or dying."""
    if sys.stdin.buffer.read() == DISMISSED:
        return
    deadline_s = time.monotonic() + OWNER_ENDS_S
    while os.getppid() == owner_pid and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    remains.sweep()


if __name__ == "__main__":
    main(int(sys.argv[1]))
