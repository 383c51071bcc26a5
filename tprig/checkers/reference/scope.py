"""Where a judgement of one request stands: what it looks at, and what it has counted so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tprig.checkers.reference.call import Request, SamplerCall, SamplerResult
from tprig.checkers.reference.judgement import Discrepancy, Subject


@dataclass(frozen=True)
class Difference:
    """Expected against found, and whether float32 explains it."""

    expected: str
    found: str
    ambiguous: bool = False
    margin: float | None = None
    band: float | None = None


@dataclass(frozen=True)
class Tally:
    """Counts of what was compared."""

    judged: Counter[Subject] = field(default_factory=Counter)
    ambiguous: Counter[Subject] = field(default_factory=Counter)


@dataclass(frozen=True, eq=False)
class Scope:
    """One request of a call and of its result."""

    call: SamplerCall
    result: SamplerResult
    index: int
    tally: Tally

    @property
    def request(self) -> Request:
        """The request's parameters."""
        return self.call.requests[self.index]

    @property
    def start(self) -> int:
        """Its first row."""
        return int(self.call.cu_num_logits[self.index])

    @property
    def end(self) -> int:
        """The row after its last."""
        return int(self.call.cu_num_logits[self.index + 1])

    @property
    def prefilling(self) -> bool:
        """Whether whatever is sampled is thrown away."""
        return self.request.seq_len < self.request.prefill_len

    def count(self, what: Subject, number: int = 1, *, ambiguous: int = 0) -> None:
        """Remember that so many comparisons were made, of which so many allow several outcomes."""
        self.tally.judged[what] += number
        self.tally.ambiguous[what] += ambiguous

    def report(self, what: Subject, step: int, difference: Difference) -> Discrepancy:
        """A discrepancy in the request's row of that number."""
        return Discrepancy(
            what,
            self.index,
            self.start + step,
            difference.expected,
            difference.found,
            difference.ambiguous,
            difference.margin,
            difference.band,
        )
