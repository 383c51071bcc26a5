"""Processes of the interpreter under test: started with a channel, ended with all they began."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def spawn(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that is told the descriptor of its channel, in a session of its own.

    Args:
        command: `--socket` and the descriptor are added to it.
        environment: all of its variables.
        log: its output is appended to it.

    Returns:
        The process and our end of the channel.

    Raises:
        OSError: if it cannot be started.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs, log.open("ab") as output:
            process = subprocess.Popen(
                [*command, "--socket", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                # `python -m` looks into its folder first, and ours may hold another vLLM.
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
    except OSError:
        ours.close()
        raise
    return process, ours


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process with all in its session: what was named may be a script that starts a Python.

    Hosts that it forked have sessions of their own, and end because their parent does.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
