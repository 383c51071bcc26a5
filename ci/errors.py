"""What cannot be done, said so that a person can act on it."""

from __future__ import annotations


class CiError(Exception):
    """Expected, found, the rule behind it, and the remedy; exit code 4."""

    def __init__(self, *, expected: str, found: str, rule: str, remedy: str) -> None:
        super().__init__(f"expected {expected}; found {found} ({rule}); {remedy}")
