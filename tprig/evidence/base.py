"""What all records share."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

SCHEMA_VERSION = 1

Number = float | Literal["-inf", "inf", "nan"]
"""A float as vLLM returned it (a float32, widened); what JSON lacks is written as a word."""

Count = Annotated[int, msgspec.Meta(ge=0)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every struct in a bundle."""


class Header(Record, frozen=True, kw_only=True, tag="header"):
    """First line of a stream."""

    version: int
    stream: Name
    """What the records are: a key of `STREAMS`."""
    subject: str
    """The run's, engine's or bundle's id."""


class End(Record, frozen=True, kw_only=True, tag="end"):
    """Last line of a stream that was closed in order."""

    records: Count
    """How many records lie between the header and this line."""
    dropped: Count = 0
    """How many the writer had to drop; any makes what needs the stream `unknown`."""


class Seam(Record, frozen=True, kw_only=True, tag="seam"):
    """Whether a place in vLLM that a recorder rests on looks as expected."""

    name: Name
    target: str
    expected: str
    found: str
    ok: bool
