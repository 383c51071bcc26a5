"""Cleans up after a run whose own process was killed.

A process that is killed cannot stop its engines. This one outlives it by a moment: it waits for
the end of its standard input, which the run holds open, and then clears what dead owners left.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from tprig import remains

DISMISSED = b"dismissed"
DISMISS_S = 5.0
OWNER_ENDS_S = 10.0
POLL_S = 0.05


class Warden:
    """The warden of this process; as a context manager it is dismissed on leaving."""

    def __init__(self) -> None:
        root = remains.runtime_root()
        self._process = subprocess.Popen(
            # Not the working directory: what is imported is what was imported here.
            [sys.executable, "-P", "-m", "tprig.warden", str(os.getpid()), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C is sent to the whole foreground group, and must not end it.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    @property
    def pid(self) -> int:
        """The warden's process."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()

    def dismiss(self) -> None:
        """Let it go, without a sweep: this process lives, and has stopped its engines itself.

        Dismissing it twice is no error.
        """
        if self._process.returncode is not None:
            return
        try:
            self._process.communicate(DISMISSED, DISMISS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def main(owner_pid: int, root: Path) -> None:
    """Wait until standard input ends; without a word of dismissal the owner is dead or dying."""
    if sys.stdin.buffer.read() == DISMISSED:
        return
    deadline_s = time.monotonic() + OWNER_ENDS_S
    while os.getppid() == owner_pid and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    remains.sweep(root)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
