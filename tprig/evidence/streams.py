"""What the streams of a bundle hold: JSON lines, written as things happen."""

from __future__ import annotations

from typing import Literal

from tprig.evidence.ab import DeviceTimes, HostCopies
from tprig.evidence.base import Count, Name, Number, Record, Seam, TokenId
from tprig.evidence.collectives import Broadcast, CollectiveRecord, ForensicRecord
from tprig.evidence.oracle import OracleCall, ReplayRecord


class Finite(Record, frozen=True, kw_only=True):
    """The tokens of one row whose processed logprob is finite, by the public output."""

    token_ids: list[TokenId]
    logprobs: list[Number]
    """Same length and order as `token_ids`: descending, as vLLM returns them."""
    complete: bool
    """True when no further finite token can exist: the row returned a -inf, or the vocabulary."""


class Row(Record, frozen=True, kw_only=True):
    """One emitted token with all that vLLM said about it."""

    token_id: TokenId
    logprob: Number | None
    rank: int | None
    """vLLM's rank: how many tokens of the vocabulary have a processed logit at least as high."""
    finite: Finite | None


class Emission(Record, frozen=True, kw_only=True, tag="emission"):
    """What one engine step returned for one request."""

    step: Count
    """Engine steps of this run that came before (the client's count)."""
    request: Name
    first: Count
    """Position of `rows[0]` among the request's output tokens."""
    rows: list[Row]
    supports: list[list[TokenId]] | None
    """`sampling_mask.token_ids` of these rows; None when the output carried no mask."""
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Refusal(Record, frozen=True, kw_only=True, tag="refusal"):
    """A request that vLLM did not accept, with its words."""

    request: Name
    error: str
    message: str


class Step(Record, frozen=True, kw_only=True, tag="step"):
    """One engine step as the client saw it, with vLLM's own counters for that step."""

    step: Count
    start_ns: Count
    """Monotonic clock of the host process, from the run's start."""
    end_ns: Count
    running: Count | None
    waiting: Count | None
    preempted: Count | None
    drafts: Count | None
    """Verifications that vLLM counted (`SpecDecodingStats.num_drafts`)."""
    draft_tokens: Count | None
    accepted_tokens: Count | None
    accepted_per_position: list[Count] | None


class Verified(Record, frozen=True, kw_only=True):
    """One request's part in one call of the rejection sampler, as a worker saw it."""

    request: Name
    draft_token_ids: list[int]
    """What was verified; -1 where vLLM placed no valid draft."""
    sampled_token_ids: list[int]
    """The accepted drafts, then the recovered or bonus token; empty for a prefill chunk."""
    rejected: Count
    scheduled: Count | None = None
    """Tokens of the request that the model ran in this step."""


class Verification(Record, frozen=True, kw_only=True, tag="verification"):
    """One call of the rejection sampler on one rank."""

    step: Count
    """Model steps of this run on this rank that came before."""
    requests: list[Verified]


class StageDigest(Record, frozen=True, kw_only=True, tag="stage"):
    """A digest of one tensor at one stage of a model step, on one rank."""

    step: Count
    stage: Name
    """`embedding`, `layer.<i>`, `local_logits`, `gathered_logits`, `processed_logits`,
    `verification`, `mask` or `host_copy`."""
    ordinal: Count
    """How often this stage was met before within the step."""
    dtype: str
    shape: list[Count]
    digest: Name
    """BLAKE2b-128 of the tensor's bytes in C order, in hex."""
    rows: list[str] = []
    """The same of each row of a matrix, 32 bits long; none where rows are not told apart."""


class Fault(Record, frozen=True, kw_only=True, tag="fault"):
    """A planted fault was switched on or off, or altered something."""

    name: Name
    event: Literal["armed", "struck", "disarmed"]
    step: Count | None
    detail: str


EventName = Literal[
    "launching",
    "ready",
    "refused",
    "crashed",
    "deadline",
    "stacks",
    "signalled",
    "stopped",
    "remains",
    "cleaned",
    "leaked",
    "lost",
]


class EngineEvent(Record, frozen=True, kw_only=True, tag="engine"):
    """What happened to an engine, in order, as the client saw it."""

    event: EventName
    at_ns: Count
    """From the engine's launch, on the client's monotonic clock."""
    detail: str
    pids: list[Count] = []
    paths: list[str] = []


class LedgerEvent(Record, frozen=True, kw_only=True, tag="test"):
    """A test's way through the run; flushed as it happens."""

    test: str
    event: Literal["planned", "collected", "started", "finished"]
    at: str
    """UTC, ISO 8601 with microseconds."""
    outcome: Literal["passed", "failed", "skipped", "error", "interrupted"] | None = None
    detail: str = ""


OutputRecord = Emission | Refusal
StepRecord = Step | Fault
CoreRecord = Broadcast | Seam
RankRecord = (
    Verification
    | StageDigest
    | OracleCall
    | Seam
    | Fault
    | CollectiveRecord
    | HostCopies
    | DeviceTimes
)
EngineRecord = EngineEvent
LedgerRecord = LedgerEvent

STREAMS: dict[str, object] = {
    "outputs": OutputRecord,
    "steps": StepRecord,
    "rank": RankRecord,
    "core": CoreRecord,
    "forensics": ForensicRecord,
    "engine": EngineRecord,
    "ledger": LedgerRecord,
    "replay": ReplayRecord,
}
"""Stream name -> the union of its records."""
