"""vLLM's own sampler, in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import pytest

from tests.tprig.checkers.reference.drawn import Drawn
from tprig.checkers.reference.call import SamplerResult
from tprig.spec import EngineSpec

ROOT = Path(__file__).parents[4]
PATIENCE_S = 300.0
"""How long a call may take before a test fails; no test passes by it."""


class RealSampler:
    """An interpreter that runs vLLM's sampler on drawn calls.

    Args:
        log: where its output goes; shown when a call fails.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        ours, theirs = socket.socketpair()
        path = os.pathsep.join([str(ROOT), str(ROOT / "tprig" / "inject")])
        environment = EngineSpec(model=Path("none"), platform="cpu").process_environment
        with theirs, log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.tprig.inject.foreign.sample",
                 str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | environment | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )  # fmt: skip
        self._connection = Connection(ours.detach())
        self.vllm_version = self._hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End it."""
        self._connection.close()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __call__(self, drawn: Drawn) -> SamplerResult:
        """What vLLM returns for the call."""
        self._connection.send(drawn)
        answer = self._hear()
        assert isinstance(answer, SamplerResult), answer
        return answer

    def _hear(self) -> object:
        ready = self._connection.poll(PATIENCE_S)
        assert ready, f"vLLM's sampler said nothing; its log:\n{self._log.read_text()[-4000:]}"
        return self._connection.recv()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSampler]:
    """vLLM's sampler; it is started once."""
    with RealSampler(tmp_path_factory.mktemp("real") / "log") as started:
        yield started
