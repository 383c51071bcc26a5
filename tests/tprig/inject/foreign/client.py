"""The pytest process's end: calls functions in an interpreter that has imported vLLM."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tprig.spec import EngineSpec

ROOT = Path(__file__).parents[4]
INJECT = ROOT / "tprig" / "inject"
PATIENCE_S = 120.0
"""How long a call may take before a test fails; no test passes by it."""


class Foreign:
    """An interpreter with vLLM on the CPU and the inject folder on its path.

    Args:
        log: where its output goes; shown when a call fails.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._socket, theirs = socket.socketpair()
        environment = EngineSpec(model=Path("none"), platform="cpu").process_environment
        with theirs, log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.tprig.inject.foreign.serve", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(_PATH)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._heard = b""
        self.warm = self._hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """End it with all that it forked."""
        self._socket.close()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __call__(self, module: str, function: str, /, **arguments: object) -> Any:
        """Call `function` of the module of that name in this folder; JSON both ways."""
        request = {"module": module, "function": function, "arguments": arguments}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        return self._hear()

    def _hear(self) -> Any:
        while not self._heard.endswith(b"\n"):
            ready, _, _ = select.select([self._socket], [], [], PATIENCE_S)
            data = self._socket.recv(1 << 20) if ready else b""
            assert data, f"the foreign interpreter said nothing; its log:\n{self._log.read_text()}"
            self._heard += data
        answer = json.loads(self._heard)
        self._heard = b""
        assert "error" not in answer, f"{answer['error']}\n{self._log.read_text()[-4000:]}"
        return answer["value"]


_PATH = (str(ROOT), str(INJECT))
