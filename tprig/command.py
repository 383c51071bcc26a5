"""Runs a command to its end or to a deadline, in a session of its own, and leaves nothing of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence


class CommandError(Exception):
    """A command could not be started, or did not end in time; says which."""


def run(
    command: Sequence[str],
    *,
    deadline_s: float,
    variables: Mapping[str, str] | None = None,
    data: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    """Run a command from the root folder: from here, an interpreter would find what lies here.

    Args:
        command: the program and its arguments.
        deadline_s: longest wait for its end, in seconds.
        variables: its whole environment; None gives it ours.
        data: what it reads from its standard input.

    Raises:
        CommandError: when it cannot be started or does not end; nothing that it started lives on.
    """
    try:
        process = subprocess.Popen(
            command,
            cwd="/",
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise CommandError(f"cannot be started: {error.strerror or error}") from error
    except ValueError as error:
        raise CommandError(f"cannot be started: {error}") from error
    with process:
        try:
            output, errors = process.communicate(data, deadline_s)
        except subprocess.TimeoutExpired:
            raise CommandError(f"no end within {deadline_s:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
