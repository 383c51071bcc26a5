"""Captured calls of the rejection sampler, and what came of running them again."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tprig.evidence.base import Count, Name, Record, Seam

CALL_VERSION = 1

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
"""BLAKE2b-128 of a tensor's bytes in C order, in hex; dtype and shape are not part of it."""
Role = Literal["input", "output"]
Device = Literal["cpu", "cuda"]
ReplayArm = Literal["off", "on"]
"""Whether sampling-mask replay is on."""
TopKTies = Literal["all", "exact"]
"""Whether a backend keeps all tokens that tie at the top-k edge, or exactly k tokens."""
Dtype = Literal[
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
Size = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class OracleCall(Record, frozen=True, kw_only=True, tag="oracle"):
    """A call of the rejection sampler that a rank captured, or why it did not.

    Written by the worker as the call is taken: whatever is changed in the stored call later no
    longer has these digests.
    """

    step: Count
    """Model steps of this run on this rank that came before."""
    number: Count
    """Calls of the rejection sampler of this run on this rank that came before."""
    call: Digest | None = None
    """The id of the captured call: `oracles/<id>/`."""
    stored: bool = False
    """True when this rank kept the tensors; large ones are kept by rank 0 alone."""
    size_bytes: Count | None = None
    traits: list[str] = []
    """What the call holds: `accepted`, `recovered`, `bonus`, `greedy`, `chunked`, ..."""
    digests: dict[str, Digest] = {}
    """Of every input and output, by its name."""
    hidden: Digest | None = None
    """Of the hidden states that the LM head was given."""
    shard: Digest | None = None
    """Of this rank's part of the logits, before they were gathered."""
    gathered: list[Digest] = []
    """Of each rank's part of the logits, as they came out of the gather on this rank."""
    reason: str | None = None
    """Why a call that was to be captured was not."""


class CallFlags(Record, frozen=True, kw_only=True):
    """How the samplers of a captured call were configured, and what its tensors do not tell."""

    vllm_version: str
    device: Device
    device_name: str
    """The model of the processor that the kernels ran on."""
    vocab_size: Size
    max_num_reqs: Size
    """Slots of vLLM's request table."""
    max_model_len: Size
    num_speculative_steps: Size
    logprobs_mode: Literal["raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"]
    use_fp64_gumbel: bool
    return_sampling_mask: bool
    """Whether replay was on where the call was captured."""
    verification: Literal["standard", "block", "synthetic"]
    top_k_ties: TopKTies
    """What the backend makes of ties at the top-k edge."""
    chunk_logits: Size
    """Rows of logits that were verified at once, at most."""
    logits_stride: Size
    """Elements from one row of the raw logits to the next: kernels sum aligned rows otherwise."""
    chunks: Size
    """How many chunks the verification took."""


class CallTensor(Record, frozen=True, kw_only=True):
    """One tensor that a call read or returned."""

    name: Name
    role: Role
    dtype: Dtype
    shape: Annotated[list[Count], msgspec.Meta(max_length=3)]
    digest: Digest
    stored: bool = True
    """False where the digest is all that was kept."""


class CapturedCall(Record, frozen=True, kw_only=True):
    """`oracles/<id>/call.json`; the tensors lie beside it. The id is a digest of this document."""

    version: int
    flags: CallFlags
    requests: list[Name]
    """Ids of the batch's requests, in its order."""
    tensors: list[CallTensor]
    """Sorted by name."""


class PlannedCall(Record, frozen=True, kw_only=True):
    """A call that was to be replayed."""

    call: Digest
    arms: list[ReplayArm]


class Replay(Record, frozen=True, kw_only=True):
    """`replays/<id>/replay.json`: captured calls that were run again, and by what."""

    version: int
    id: Name
    started: str
    """UTC, ISO 8601."""
    python: str
    device: Device
    device_name: str
    vllm_version: str
    vllm_path: str
    versions: dict[str, str]
    repetitions: Size
    seams: list[Seam]
    replays_masks: bool
    """False for a vLLM whose sampler returns no masks: it has no arm `on`."""
    planned: list[PlannedCall]
    top_k_ties: TopKTies | None = None
    """The same of the vLLM that ran them; None where it was not told."""
    faults: list[str] = []
    """Bugs that were planted in the samplers."""


class Replayed(Record, frozen=True, kw_only=True, tag="replayed"):
    """One repetition of one call in one arm."""

    call: Digest
    arm: ReplayArm
    repetition: Count
    elapsed_ns: Count
    digests: dict[str, Digest]
    """Of everything that was returned, and of the generator's state after it (`rng_after`)."""
    mutated: list[str]
    """Inputs that were not the same after the call."""
    kept: Digest | None = None
    """`outputs/<kept>.safetensors` holds the outputs that production did not return alike."""


class ReplayFailure(Record, frozen=True, kw_only=True, tag="replay-failure"):
    """An arm of a call that could not be run to its end."""

    call: Digest
    arm: ReplayArm
    error: str
    message: str


ReplayRecord = Replayed | ReplayFailure
