"""Foreign strings made safe to show: a bundle's words never become markup, links or escapes."""

from __future__ import annotations

import re

from tprig import evidence
from tprig.bundle.files import printable

ELLIPSIS = "…"
MESSAGE_LIMIT = 600
"""Characters of a foreign message that a report shows; the bundle holds the whole."""

ANNOTATION_LIMIT_BYTES = 1 << 20
"""Of Buildkite's annotations and of GitHub's step summaries."""
_CUT = "\n\n… cut here; the bundle holds the whole.\n"


def one_line(text: str) -> str:
    r"""Return `text` on one line, with everything that does not print written as an escape.

    Terminal escapes, bidirectional overrides, zero-width characters and lone surrogates come out
    as `\x1b`, `\u202e` and the like; runs of white space become one space.
    """
    return printable(" ".join(text.split()))


def shortened(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return `text` cut to `limit` characters, with an ellipsis where it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


def code(text: str, *, cell: bool = False) -> str:
    """Return `text` as a Markdown code span that nothing in it can leave.

    In a code span HTML, links, mentions and issue numbers are inert. The fence is longer than any
    run of backticks within.

    Args:
        text: Any string.
        cell: True within a table. A bar ends a cell even in a code span, and readers differ on
            how one is escaped there, so it is shown as a broken bar.
    """
    safe = shortened(one_line(text)) or "(empty)"
    if cell:
        safe = safe.replace("|", "\N{BROKEN BAR}")
    runs = [len(run) for run in re.findall(r"`+", safe)]
    fence = "`" * (max(runs, default=0) + 1)
    pad = " " if safe.startswith("`") or safe.endswith("`") else ""
    return f"{fence}{pad}{safe}{pad}{fence}"


def place(where: evidence.Location) -> str:
    """Return where in the bundle a finding lies: `file:line (run r, request q, row 3)`."""
    head = where.file if where.line is None else f"{where.file}:{where.line}"
    parts = [
        f"{name} {value}"
        for name, value in (
            ("run", where.run),
            ("request", where.request),
            ("row", where.row),
            ("step", where.step),
            ("rank", where.rank),
        )
        if value is not None
    ]
    return one_line(f"{head} ({', '.join(parts)})" if parts else head)


def cut(text: str, limit_bytes: int = ANNOTATION_LIMIT_BYTES) -> str:
    """Return what fits, cut at the end of a line, and say so where it was cut."""
    encoded = text.encode()
    if len(encoded) <= limit_bytes:
        return text
    room = limit_bytes - len(_CUT.encode())
    return encoded[:room].decode(errors="ignore").rpartition("\n")[0] + _CUT
