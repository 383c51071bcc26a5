"""What the workers say of each sampling call, put together per request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tprig.checkers.emitted import Emitted
from tprig.evidence import Location, RankRecord, Verification, Verified
from tprig.history import FIRST_RECORD_LINE, RunHistory, Stream


@dataclass(frozen=True, slots=True)
class Call:
    """One request's part in one sampling call on one rank."""

    rank: int
    step: int
    line: int
    verified: Verified

    @property
    def drafts(self) -> list[int]:
        """The drafts under verification, -1 where there is none."""
        return self.verified.draft_token_ids

    @property
    def sampled(self) -> list[int]:
        """Accepted drafts, then one recovered or bonus token."""
        return self.verified.sampled_token_ids

    @property
    def valid_drafts(self) -> int:
        """How many drafts could have been accepted: those before the first placeholder."""
        return self.drafts.index(-1) if -1 in self.drafts else len(self.drafts)

    @property
    def accepted(self) -> int:
        """How many drafts were accepted, as vLLM counts them: all that was sampled but the last."""
        return max(len(self.sampled) - 1, 0)


@dataclass
class Tally:
    """Counts over verifications, with vLLM's own counters and the kinds of tokens."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    recovered: int = 0
    bonus: int = 0
    proposed_by_position: list[int] | None = None
    accepted_by_position: list[int] | None = None

    def add(self, call: Call) -> None:
        """Count a call as `Scheduler.update_from_output` does."""
        if not call.drafts or not call.sampled:
            return
        self.drafts += 1
        self.draft_tokens += len(call.drafts)
        self.accepted += call.accepted
        self.recovered += call.accepted < call.valid_drafts
        self.bonus += 0 < call.valid_drafts == call.accepted
        self.proposed_by_position = _raised(self.proposed_by_position, call.valid_drafts)
        self.accepted_by_position = _raised(self.accepted_by_position, call.accepted)


def _raised(counts: list[int] | None, below: int) -> list[int]:
    counts = [*(counts or []), *([0] * (below - len(counts or [])))]
    return [n + (position < below) for position, n in enumerate(counts)]


def verifications(stream: Stream[RankRecord]) -> Iterator[tuple[int, Verification]]:
    """The verifications of a rank's stream with their lines."""
    for line, record in enumerate(stream.records, FIRST_RECORD_LINE):
        if isinstance(record, Verification):
            yield line, record


def calls(run: RunHistory, rank: int) -> Iterator[Call]:
    """Every request's part in every sampling call of a rank."""
    for line, record in verifications(run.ranks[rank]):
        for verified in record.requests:
            yield Call(rank, record.step, line, verified)


def sampling_calls(run: RunHistory, rank: int) -> dict[str, list[Call]]:
    """By request, the calls that sampled something: all but those of prefill chunks."""
    requests: dict[str, list[Call]] = {}
    for call in calls(run, rank):
        if call.sampled:
            requests.setdefault(call.verified.request, []).append(call)
    return requests


def until_finished(sampled: list[Call], output: Emitted | None) -> int:
    """How many calls there were when the request finished; all when it has not.

    Args:
        sampled: the request's sampling calls, in order.
        output: what the request emitted.
    """
    if output is None or output.finish_reason is None:
        return len(sampled)
    tokens = 0
    for number, call in enumerate(sampled, 1):
        tokens += len(call.sampled)
        if tokens >= output.length:
            return number
    return len(sampled)


def place(run: RunHistory, call: Call, row: int | None = None) -> Location:
    """Where a call stands in its rank's stream."""
    return Location(
        file=run.ranks[call.rank].path,
        line=call.line,
        run=run.id,
        request=call.verified.request,
        row=row,
        step=call.step,
        rank=call.rank,
    )
