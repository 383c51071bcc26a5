"""What the reference says of one call: where it differs, by how much, and how much was judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Subject(Enum):
    """What of a call's result differs; the values name anomalies of the family `oracle`."""

    TOKENS = "tokens"
    """A recovered, bonus or greedy token is not the argmax that seed and position lead to."""
    DECISIONS = "decisions"
    """A draft was accepted or refused against the accept test, or a prefix is not the drafts."""
    COUNTS = "counts"
    """`num_sampled` and `num_rejected` do not add up to the rows."""
    SUPPORT = "support"
    """A support, or the finite processed logits, are not what the filters leave."""
    LOGPROBS = "logprobs"
    RANKS = "ranks"
    PROCESSED = "processed"
    """A processed logit differs."""


@dataclass(frozen=True)
class Discrepancy:
    """One place where what was found is not what the reference expects."""

    what: Subject
    request: int
    """In batch order."""
    row: int
    """Of the call's logits."""
    expected: str
    found: str
    ambiguous: bool
    """The margin lies within the band: no verdict."""
    margin: float | None = None
    """How far the found outcome is from the expected one, in nats (of block verification, as a
    probability); None where it is not a matter of degree."""
    band: float | None = None
    """How much of that float32 arithmetic explains."""


@dataclass(frozen=True)
class Judgement:
    """All discrepancies of one call, and the counts that say what was looked at."""

    discrepancies: tuple[Discrepancy, ...] = ()
    judged: Mapping[Subject, int] = field(default_factory=dict)
    """Comparisons made: tokens, accept tests, supports, logprobs, ..."""
    ambiguous: Mapping[Subject, int] = field(default_factory=dict)
    """Of those, the ones where float32 allows more than one outcome (whether or not the one found
    is the one expected)."""
    undecided: tuple[str, ...] = ()
    """Why something could not be judged at all: NaN in a row, a stage that is not modelled."""

    @property
    def failures(self) -> tuple[Discrepancy, ...]:
        """The discrepancies that no rounding explains."""
        return tuple(each for each in self.discrepancies if not each.ambiguous)
