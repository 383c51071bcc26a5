"""Runs a command with a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from tprig.tree.errors import TreeError

DEADLINE_S = 60.0
"""On a network disk, git or an interpreter's cold start takes seconds."""


def run(
    command: Sequence[str], variables: Mapping[str, str], data: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command from the root folder, in a session of its own.

    Raises:
        TreeError: when it cannot be started or does not end; nothing that it started lives on.
    """
    try:
        # Not from here: an interpreter would find a checkout of vLLM in this folder first.
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
        raise _cannot_run(command, error.strerror or str(error)) from error
    with process:
        try:
            output, errors = process.communicate(data, DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise _cannot_run(command, f"no end within {DEADLINE_S:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _cannot_run(command: Sequence[str], found: str) -> TreeError:
    return TreeError(
        expected=f"{command[0]} to run",
        found=found,
        rule="git compares a tree with what the interpreter under test has installed",
        remedy="install git, or name a Python that works with --tprig-vllm-python",
    )


def reason(errors: bytes) -> str:
    """Why a command failed: git's `fatal` line, or else the last, as of a traceback."""
    lines = errors.decode(errors="replace").strip().splitlines() or ["no reason was given"]
    return next((line for line in lines if line.startswith("fatal: ")), lines[-1])
