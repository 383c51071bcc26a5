"""What pytest says of a test that it has collected."""

from __future__ import annotations

import msgspec


class Collected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One test.

    Attributes:
        test: pytest's node id.
        gpus: devices that its markers ask for: of ranks, or by `gpus(count=...)`.
        markers: names.
    """

    test: str
    gpus: int
    markers: list[str]
