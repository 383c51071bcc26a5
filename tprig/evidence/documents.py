"""The documents of a bundle: one JSON object each."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tprig.evidence.ab import Comparison
from tprig.evidence.base import Count, Name, Record, Seam, TokenId


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
    abort_step: Count | None = None
    """The request is aborted when the engine has made this many steps, if it is not done."""


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
    exact: dict[str, Count] = {}
    """What the checker must count in each step, by its own names; else the claim is `unknown`."""
    comparison: Comparison | None = None
    """How it is measured, of a claim on cost."""
    judges: list[Name] = []
    """Of a planted fault: the checkers that are asked for the anomaly that names it."""
    refusal: str = ""
    """Words that a refusal must have, where one is what must be."""
    boundary: dict[str, str] = {}
    """Roles (`1-first`, `1-second`, ...) -> run ids of pairs that nothing should tell apart: when
    something does, comparing engines decides nothing, and the claim is `withdrawn`."""


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
