"""The schema of a bundle: every record that is written, typed and versioned.

A bundle is read by people who did not make it, so each record is a frozen struct that refuses
unknown fields, and nothing in a bundle is ever executed. Two kinds of file hold records:

* a *document* is one JSON object (`plan.json`, `runs/<id>/run.json`, ...);
* a *stream* is JSON lines: one `Header`, then records of one union, then one `End`. A stream with
  no `End` was cut short, and what needs it is `unknown`.

Unknown is `None`, never 0. A float that JSON cannot hold is written as a word (`Number`).
"""

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


# --- streams ---------------------------------------------------------------------------------


class Header(Record, frozen=True, kw_only=True, tag="header"):
    """First line of a stream."""

    version: int
    stream: Name
    """What the records are: `outputs`, `steps`, `rank`, `engine` or `ledger`."""
    subject: str
    """The run's, engine's or bundle's id."""


class End(Record, frozen=True, kw_only=True, tag="end"):
    """Last line of a stream that was closed in order."""

    records: Count
    """How many records lie between the header and this line."""
    dropped: Count = 0
    """How many the writer had to drop; any makes what needs the stream `unknown`."""


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


class Seam(Record, frozen=True, kw_only=True, tag="seam"):
    """Whether a place in vLLM that a recorder rests on looks as expected."""

    name: Name
    target: str
    expected: str
    found: str
    ok: bool


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
RankRecord = Verification | StageDigest | Seam | Fault
EngineRecord = EngineEvent
LedgerRecord = LedgerEvent


# --- documents -------------------------------------------------------------------------------


class Sampling(Record, frozen=True, kw_only=True):
    """Sampling parameters of one request, by vLLM's names."""

    temperature: float
    max_tokens: Count
    seed: int | None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: Count = 0
    stop_token_ids: list[TokenId] = []
    allowed_token_ids: list[TokenId] | None = None
    bad_words_token_ids: list[list[TokenId]] | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool = True
    logprobs: int | None = None
    """How many top logprobs to return beside the emitted token's; -1 means the vocabulary."""


class Request(Record, frozen=True, kw_only=True):
    """One request of a workload."""

    id: Name
    prompt_token_ids: list[TokenId]
    arrival_step: Count
    """The request is added when the engine has made this many steps (or has none left to make)."""
    sampling: Sampling


class Workload(Record, frozen=True, kw_only=True):
    """`runs/<id>/requests.json`."""

    profile: Name
    seed: int
    vocab_size: Count
    requests: list[Request]


class Arm(Record, frozen=True, kw_only=True):
    """`engines/<id>/spec.json`: everything that decides what an engine does."""

    python: str
    tree: str | None
    platform: Literal["cpu", "cuda"]
    tensor_parallel_size: Count
    engine_args: dict[str, msgspec.Raw]
    environment: dict[str, str]
    model_digest: str
    """SHA-256 over the checkpoint's files (names and contents)."""
    core_process: bool
    """True when the engine core runs as a process of its own."""


class Effective(Record, frozen=True, kw_only=True):
    """`engines/<id>/effective.json`: what the engine said it does, once it was ready."""

    vllm_version: str
    vllm_digest: str
    """SHA-256 over the vLLM Python files that the engine's processes had imported."""
    vllm_path: str
    versions: dict[str, str]
    """torch, triton, transformers, CUDA, NCCL, Python, ..."""
    config: dict[str, str]
    """The effective vLLM configuration, flattened: `scheduler.async_scheduling` -> `False`."""
    pids: dict[str, Count]
    """Process ids by role: `host`, `core`, `rank0`, ..."""
    devices: list[str]
    seams: list[Seam]
    vocab_size: Count


class Run(Record, frozen=True, kw_only=True):
    """`runs/<id>/run.json`, written when the run has ended: one workload on one engine."""

    id: Name
    engine: Name
    test: str
    recorders: list[str]
    """What was recorded in the workers, by name."""
    faults: list[str]
    started: str
    """UTC, ISO 8601."""
    elapsed_s: float
    complete: bool
    """True when every request finished or was refused."""
    rank_streams: Count
    """How many per-rank streams this run should have."""


Requirement = Literal["required", "not-applicable"]


class Claim(Record, frozen=True, kw_only=True):
    """One thing that this run must decide."""

    id: Name
    test: str
    checker: Name
    """The key of `tprig.checkers.CHECKERS` that judges it."""
    anomalies: list[str]
    """The anomalies that this claim excludes; a finding of another name still fails it."""
    runs: dict[str, str]
    """The checker's roles (`on`, `off`, `tp1`, ...) -> run ids."""
    tensor_parallel_size: Count
    requirement: Requirement = "required"
    reason: str | None = None
    """Why it is not applicable."""
    minima: dict[str, Count] = msgspec.field(default_factory=lambda: {"rows": 1})
    """Less measured than this (`Verdict.measured`) makes the claim `unknown`."""


class KnownIssue(Record, frozen=True, kw_only=True):
    """A known fault of some vLLM versions; strict: it must show."""

    anomaly: str
    claim: str
    """A glob over claim ids."""
    versions: str
    """A PEP 440 specifier set."""
    reason: str
    link: str


class Plan(Record, frozen=True, kw_only=True):
    """`plan.json`: what was to be decided, written before anything ran."""

    version: int
    created: str
    command: list[str]
    seed: int
    profile: str
    platform: Literal["cpu", "cuda"]
    tests: list[str]
    claims: list[Claim]
    known_issues: list[KnownIssue] = []


class Gpu(Record, frozen=True, kw_only=True):
    """One GPU of the host."""

    uuid: str
    name: str
    pci_bus_id: str
    memory_total_bytes: Count | None
    driver: str | None


class Repository(Record, frozen=True, kw_only=True):
    """State of a git work tree."""

    commit: str | None
    base: str | None
    """Merge base with the upstream branch, where one is configured."""
    dirty: bool | None
    diff_digest: str | None
    """SHA-256 of `git diff HEAD`, when dirty."""
    changed: list[str] = []
    """Of a tree under test: files under `vllm/` that it has otherwise than its base."""
    patched: list[str] = []
    """Files that the installed build has otherwise than the base, and that stayed as they are."""


class Environment(Record, frozen=True, kw_only=True):
    """`environment.json`: what ran where."""

    tprig_version: str
    tprig: Repository
    tree: Repository | None
    host: str
    kernel: str
    machine: str
    cpu: str
    cpu_count: Count
    memory_bytes: Count
    gpus: list[Gpu]
    python: str
    packages: list[str]
    """`pip freeze` of the interpreter under test."""
    variables: dict[str, str]
    """Environment variables that matter, secrets redacted."""
    oversubscribed: bool = False


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


class FileEntry(Record, frozen=True, kw_only=True):
    """One file of the bundle."""

    path: Name
    size_bytes: Count
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Manifest(Record, frozen=True, kw_only=True):
    """`manifest.json`: written last; its own digest is over the entries."""

    version: int
    bundle: Name
    files: list[FileEntry]
    root: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """SHA-256 over the canonical JSON of `[version, bundle, files]`."""


STREAMS: dict[str, object] = {
    "outputs": OutputRecord,
    "steps": StepRecord,
    "rank": RankRecord,
    "engine": EngineRecord,
    "ledger": LedgerRecord,
}
"""Stream name -> the union of its records."""
