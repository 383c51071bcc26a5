"""What checkers say: findings, and the verdicts that rest on them."""

from __future__ import annotations

from typing import Literal

from tprig.evidence.base import Count, Name, Record

VerdictName = Literal["pass", "fail", "unknown", "expected", "withdrawn", "not-applicable"]


class Location(Record, frozen=True, kw_only=True):
    """Where in the bundle a finding lies."""

    file: str
    line: Count | None = None
    """1-based, in a stream."""
    run: str | None = None
    request: str | None = None
    row: Count | None = None
    """Position among the request's output tokens."""
    step: Count | None = None
    rank: Count | None = None


class Finding(Record, frozen=True, kw_only=True):
    """One violation of one rule."""

    anomaly: str
    message: str
    """Expected, found, rule."""
    where: Location


class Verdict(Record, frozen=True, kw_only=True):
    """The judgement of one claim."""

    claim: Name
    verdict: VerdictName
    reason: str
    measured: dict[str, Count]
    """What was judged: `rows`, `accepted`, `recovered`, `bonus`, ..."""
    failures: dict[str, Count] = {}
    """Failures by anomaly, in the order of blame: the first names the cause."""
    findings: list[Finding] = []
    """The first few; `findings[0]` is the counter-example."""
    notes: dict[str, str] = {}
    """Figures that a reader may want: acceptance by position, largest difference, ..."""


class Verdicts(Record, frozen=True, kw_only=True):
    """`verdicts.json`."""

    version: int
    plan_digest: str
    worst: VerdictName
    verdicts: list[Verdict]
