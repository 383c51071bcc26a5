"""The client of a warm template: starts it, asks it for engine hosts, hears of their ends."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tprig import foreign, messages, tails
from tprig.wire import MalformedMessageError, PeerGoneError, WaitExpiredError, Wire

INJECT = Path(__file__).parent / "inject"
WARM_DEADLINE_S = 300.0
FORK_DEADLINE_S = 30.0
STOP_DEADLINE_S = 2.0
REMEDY = "name one with --tprig-vllm-python"


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
        warm_deadline_s: longest wait for vLLM to be imported.

    Attributes:
        warm: what it said once vLLM was imported.
        warm_s: how long that took.

    Raises:
        TemplateError: if there is no such interpreter, or it cannot import vLLM.
    """

    def __init__(
        self,
        python: str,
        overlay: Path | None,
        environment: Mapping[str, str],
        log: Path,
        *,
        warm_deadline_s: float = WARM_DEADLINE_S,
    ) -> None:
        self._python = python
        self._log = log
        self._codes: dict[int, int] = {}
        self._forked: dict[str, int] = {}
        # Engines are started and stopped by several threads; the channel is one.
        self._lock = threading.RLock()
        started_s = time.monotonic()
        self._process, self._wire = self._spawn(
            {**os.environ, **environment, **module_path(overlay)}
        )
        try:
            self.warm = self._await_warm(warm_deadline_s)
        except BaseException:
            foreign.kill(self._process)
            self.close()
            raise
        self.warm_s = time.monotonic() - started_s

    def _spawn(
        self, environment: Mapping[str, str]
    ) -> tuple[subprocess.Popen[bytes], Wire[messages.FromTemplate]]:
        try:
            process, ours = foreign.spawn(
                [self._python, "-m", "tprig_inject.template"], environment, self._log
            )
        except OSError as error:
            raise TemplateError(
                f"expected a Python with vLLM at {self._python}, found that it cannot be started: "
                f"{error}; {REMEDY}"
            ) from error
        return process, Wire(ours, messages.FromTemplate)

    def _await_warm(self, deadline_s: float) -> messages.Warm:
        expected = f"expected a Python with vLLM at {self._python}"
        try:
            message = self._wire.receive(deadline_s)
        except WaitExpiredError as error:
            raise TemplateError(
                f"{expected}, found that it has not imported vLLM within {deadline_s:g} s; "
                f"{REMEDY}{self._words()}"
            ) from error
        except MalformedMessageError as error:
            raise TemplateError(f"{expected}, found something else: {error}; {REMEDY}") from error
        except PeerGoneError as error:
            ending = tails.ending(self._code(STOP_DEADLINE_S))
            raise TemplateError(
                f"{expected}, found that it {ending} before it had imported vLLM; "
                f"{REMEDY}{self._words()}"
            ) from error
        if isinstance(message, messages.Warm):
            return message
        raise TemplateError(
            f"{expected}, found that vLLM cannot be imported: {_told(message)}; {REMEDY}; "
            "`tprig doctor` says what is missing"
        )

    @property
    def pid(self) -> int:
        """The template's process."""
        return self.warm.pid

    def fork(self, request: Mapping[str, Any]) -> Child:
        """Fork an engine host.

        Raises:
            TemplateError: if the template is gone, does not answer, or cannot fork.
        """
        ours, theirs = socket.socketpair()
        try:
            with self._lock, theirs, self._explained():
                self._wire.send(dict(request), [theirs.fileno()])
                return Child(self._await_fork(request["engine"]), ours)
        except BaseException:
            # A host that nobody is connected to ends.
            ours.close()
            raise

    def _await_fork(self, engine: str) -> int:
        deadline_s = time.monotonic() + FORK_DEADLINE_S
        while engine not in self._forked:
            self._hear(max(0.0, deadline_s - time.monotonic()))
        return self._forked.pop(engine)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        who = f"the warm template (pid {self.pid})"
        try:
            yield
        except MalformedMessageError as error:
            raise TemplateError(f"{who} sent no message: {error}{self._words()}") from error
        except PeerGoneError as error:
            ending = tails.ending(self._code(STOP_DEADLINE_S))
            raise TemplateError(f"{who} {ending}: {error}{self._words()}") from error
        except WaitExpiredError as error:
            raise TemplateError(f"{who} does not answer: {error}{self._words()}") from error

    def exit_code(self, pid: int, timeout_s: float) -> int | None:
        """How a forked host ended: its exit code, negative for a signal, None if not known."""
        deadline_s = time.monotonic() + timeout_s
        try:
            with self._lock:
                while pid not in self._codes:
                    self._hear(max(0.0, deadline_s - time.monotonic()))
        except (PeerGoneError, WaitExpiredError, MalformedMessageError, TemplateError):
            return None
        return self._codes[pid]

    def _hear(self, timeout_s: float) -> None:
        message = self._wire.receive(timeout_s)
        if isinstance(message, messages.Ended):
            self._codes[message.pid] = message.code
        elif isinstance(message, messages.Forked):
            # The kernel gives a process id away again.
            self._codes.pop(message.pid, None)
            self._forked[message.engine] = message.pid
        else:
            raise TemplateError(f"the warm template cannot fork a host: {_told(message)}")

    def alive(self) -> bool:
        """True while the process runs."""
        return self._code(0) is None

    def ending(self, timeout_s: float) -> str | None:
        """How the process ended, in words; None if it still runs after so long."""
        code = self._code(timeout_s)
        return None if code is None else tails.ending(code)

    def _code(self, timeout_s: float) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def _words(self) -> str:
        words = tails.tail(self._log)
        return f"\nthe end of {self._log}:\n{words}" if words else ""

    def close(self) -> None:
        """End the template; its hosts end with it."""
        self._wire.close()
        if self._code(STOP_DEADLINE_S) is None:
            foreign.kill(self._process)


def module_path(overlay: Path | None) -> dict[str, str]:
    """Where modules are found: what is injected, the overlay, and what the user names."""
    folders = [str(INJECT), *([str(overlay)] if overlay else [])]
    if inherited := os.environ.get("PYTHONPATH"):
        folders.append(inherited)
    # Not the working directory: it may be a checkout of vLLM that is not the one under test.
    return {"PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}


def _told(message: object) -> str:
    if isinstance(message, messages.Failed):
        return f"{message.error}: {message.message}"
    return f"it sent {type(message).__name__.lower()}"
