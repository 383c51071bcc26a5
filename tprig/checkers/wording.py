"""How findings speak of tokens, sets and numbers: short enough to read, exact enough to trust."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_SHOWN = 8


def tokens(ids: Sequence[int]) -> str:
    """Token ids in their order, abbreviated: `[3, 7, 9, ... 47 in all]`."""
    shown = ", ".join(map(str, ids[:_SHOWN]))
    return f"[{shown}]" if len(ids) <= _SHOWN else f"[{shown}, ... {len(ids)} in all]"


def difference(expected: Collection[int], found: Collection[int]) -> str:
    """How two sets of token ids differ: `lacks [5], has [9] too many`."""
    lacking, extra = set(expected) - set(found), set(found) - set(expected)
    parts = [f"lacks {tokens(sorted(lacking))}"] if lacking else []
    parts += [f"has {tokens(sorted(extra))} too many"] if extra else []
    return ", ".join(parts) or "holds the same tokens"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
