"""Printing: tables for people, JSON for programs, and no complaint when nobody reads on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
from rich.console import Console, RenderableType

PIPE_WIDTH = 160
"""Columns where the output is no terminal: a log has no edge at 80, and places stay whole."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Do not exit as rich would: the exit code is the verdict's, whoever stopped reading."""
        silence()


def console() -> Console:
    """Return a console on the standard output."""
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return _Console(highlight=False, markup=False, emoji=False, width=PIPE_WIDTH if wide else None)


def show(*parts: RenderableType) -> None:
    """Print tables and texts."""
    out = console()
    for part in parts:
        out.print(part)


def write(text: str) -> None:
    """Write text to the standard output as it is."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        silence()


def write_json(value: object) -> None:
    """Write structs, dataclasses and plain values as indented JSON."""
    encoded = msgspec.json.encode(value, enc_hook=_encode_other)
    write(msgspec.json.format(encoded, indent=1).decode() + "\n")


def _encode_other(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def silence() -> None:
    """Write no more: whoever read has stopped."""
    # The interpreter flushes at its end, and must find somewhere to flush to.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
