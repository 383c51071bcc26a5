"""Real processes for the tests of locks and leases, kept in step over pipes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
"""How long a child may take before a test fails; no test passes by it."""

PREAMBLE = """
import os, sys
import gpu_scheduler.nvml
from gpu_scheduler.locks import LockFolder
from gpu_scheduler.owner import Owner, encode
from gpu_scheduler.scheduler import lease
from tests.fakes.nvml import host_of
gpu_scheduler.nvml.pynvml = host_of(2)
def say(word):
    print(word, flush=True)
def wait():
    sys.stdin.readline()
def become(uid):
    Owner.current("")  # imports what the other user may not be able to read
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
"""


class Child:
    """A Python process that runs a script after `PREAMBLE`, on a host of two fake GPUs.

    The script says words, which `hear` returns, and waits for `tell`. It becomes another user only
    once everything is imported: the interpreter itself may lie where others cannot read it.
    """

    def __init__(self, script: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self._heard = b""

    def hear(self) -> str:
        """Returns the next word."""
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._stdout], [], [], PATIENCE_S)
            more = os.read(self._stdout.fileno(), 4096) if ready else b""
            assert more, "the child said nothing"
            self._heard += more
        word, _, self._heard = self._heard.partition(b"\n")
        return word.decode()

    def tell(self) -> None:
        """Lets the script pass its next `wait`."""
        self._stdin.write(b"\n")

    def kill(self) -> None:
        """Ends the process as the kernel's out-of-memory killer would."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._stdin.close()
        self._stdout.close()
