"""Runs git and interpreters, and words what went wrong with them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from tprig import command as commands
from tprig.tree.errors import TreeError

DEADLINE_S = 60.0
"""On a network disk, git or an interpreter's cold start takes seconds."""


def run(
    command: Sequence[str], variables: Mapping[str, str], data: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command.

    Raises:
        TreeError: when it cannot be started or does not end; nothing that it started lives on.
    """
    try:
        return commands.run(command, deadline_s=DEADLINE_S, variables=variables, data=data)
    except commands.CommandError as error:
        raise _cannot_run(command, str(error)) from error


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
