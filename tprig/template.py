"""The client of a warm template: starts it, asks it for engine hosts, hears of their ends."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tprig import messages, tails
from tprig.wire import PeerGoneError, WaitExpiredError, Wire

INJECT = Path(__file__).parent / "inject"
WARM_DEADLINE_S = 300.0
FORK_DEADLINE_S = 30.0
STOP_DEADLINE_S = 5.0


class TemplateError(Exception):
    """The interpreter under test cannot serve engines."""


@dataclasses.dataclass(frozen=True)
class Child:
    """An engine host that was forked."""

    pid: int
    channel: socket.socket


class Template:
    """One warm process of one interpreter, overlay and environment.

    It must be started from a thread that outlives it: the kernel ends it with that thread.

    Args:
        python: the interpreter under test.
        overlay: a folder with a `vllm` package to be taken before the installed one.
        environment: variables to set; those of this process are kept beside them.
        log: where its output goes.
    """

    def __init__(
        self, python: str, overlay: Path | None, environment: Mapping[str, str], log: Path
    ) -> None:
        self._python = python
        self._log = log
        self._codes: dict[int, int] = {}
        self._forked: dict[str, int] = {}
        # Engines are started and stopped by several threads; the channel is one.
        self._lock = threading.RLock()
        started_s = time.monotonic()
        self._process, self._wire = self._spawn(overlay, environment)
        try:
            self.warm = self._await_warm()
        except BaseException:
            self.close()
            raise
        self.warm_s = time.monotonic() - started_s

    def _spawn(
        self, overlay: Path | None, environment: Mapping[str, str]
    ) -> tuple[subprocess.Popen[bytes], Wire[messages.FromTemplate]]:
        ours, theirs = socket.socketpair()
        path = [str(INJECT), *([str(overlay)] if overlay else [])]
        if inherited := os.environ.get("PYTHONPATH"):
            path.append(inherited)
        command = [self._python, "-m", "tprig_inject.template", "--socket", str(theirs.fileno())]
        try:
            with theirs, self._log.open("ab") as log:
                process = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(path)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise TemplateError(
                f"cannot start the interpreter under test: expected a Python with vLLM at "
                f"{self._python}, found: {error.strerror or error}; name one with "
                "--tprig-vllm-python"
            ) from error
        return process, Wire(ours, messages.FromTemplate)

    def _await_warm(self) -> messages.Warm:
        try:
            message = self._wire.receive(WARM_DEADLINE_S)
        except WaitExpiredError as error:
            raise TemplateError(
                f"{self._python} did not import vLLM within {WARM_DEADLINE_S:g} s"
            ) from error
        except PeerGoneError as error:
            raise TemplateError(
                f"{self._python} ended before it had imported vLLM: expected a Python with vLLM "
                f"installed; its last words:\n{tails.tail(self._log)}"
            ) from error
        if isinstance(message, messages.Warm):
            return message
        assert isinstance(message, messages.Failed)
        raise TemplateError(
            f"{self._python} cannot import vLLM: {message.error}: {message.message}; run "
            "`tprig doctor` for what is missing"
        )

    @property
    def pid(self) -> int:
        """The template's process."""
        return self._process.pid

    def fork(self, request: Mapping[str, Any]) -> Child:
        """Fork an engine host.

        Raises:
            TemplateError: if the template is gone or does not answer.
        """
        ours, theirs = socket.socketpair()
        try:
            with self._lock, theirs:
                self._wire.send(dict(request), [theirs.fileno()])
                return Child(self._await_fork(request["engine"]), ours)
        except (PeerGoneError, WaitExpiredError) as error:
            ours.close()
            raise TemplateError(
                f"the warm template (pid {self.pid}) is gone: {error}; its last words:\n"
                f"{tails.tail(self._log)}"
            ) from error

    def _await_fork(self, engine: str) -> int:
        while engine not in self._forked:
            self._hear(FORK_DEADLINE_S)
        return self._forked.pop(engine)

    def exit_code(self, pid: int, timeout_s: float) -> int | None:
        """How a forked host ended: its exit code, negative for a signal, None if not known."""
        deadline_s = time.monotonic() + timeout_s
        try:
            with self._lock:
                while pid not in self._codes:
                    self._hear(max(0.0, deadline_s - time.monotonic()))
        except (PeerGoneError, WaitExpiredError):
            return None
        return self._codes[pid]

    def _hear(self, timeout_s: float) -> None:
        message = self._wire.receive(timeout_s)
        if isinstance(message, messages.Ended):
            self._codes[message.pid] = message.code
        elif isinstance(message, messages.Forked):
            self._forked[message.engine] = message.pid

    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the template; its hosts end with it."""
        self._wire.close()
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
