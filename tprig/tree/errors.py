"""What can go wrong when a tree is laid over an installed vLLM."""

from __future__ import annotations

from collections.abc import Sequence

from tprig.bundle.files import printable

_SHOWN = 5


class TreeError(Exception):
    """A tree cannot be laid over the installed vLLM."""

    def __init__(self, *, expected: str, found: str, rule: str, remedy: str) -> None:
        parts = {"expected": expected, "found": found, "rule": rule, "remedy": remedy}
        lines = (f"{name + ':':<9} {printable(part)}" for name, part in parts.items())
        super().__init__("\n".join(lines))


def some(names: Sequence[str]) -> str:
    """The first few of many names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
