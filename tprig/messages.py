"""What an engine's host and the warm template tell the client: typed, so that nothing is guessed.

The records among them are those of the evidence schema, and go into the bundle as they come.
"""

from __future__ import annotations

import msgspec

from tprig import evidence


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the messages that are not evidence."""


class Warm(Message, frozen=True, kw_only=True, tag="warm"):
    """The template has imported vLLM."""

    pid: int
    vllm_version: str
    vllm_path: str


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """The template cannot import vLLM, or cannot fork a host."""

    error: str
    message: str


class Forked(Message, frozen=True, kw_only=True, tag="forked"):
    """The template has forked a host."""

    engine: str
    pid: int


class Ended(Message, frozen=True, kw_only=True, tag="ended"):
    """A host has ended; `code` is negative for a signal."""

    pid: int
    code: int


class Ready(Message, frozen=True, kw_only=True, tag="ready"):
    """The engine takes requests."""


class Refused(Message, frozen=True, kw_only=True, tag="refused"):
    """vLLM did not build the engine."""

    error: str
    message: str


class Crashed(Message, frozen=True, kw_only=True, tag="crashed"):
    """The engine raised while it served."""

    error: str
    message: str


class Described(Message, frozen=True, kw_only=True, tag="described"):
    """What the engine does, as it says itself."""

    vllm_version: str
    vllm_digest: str
    vllm_path: str
    versions: dict[str, str]
    config: dict[str, str]
    pids: dict[str, int]
    vocab_size: int
    imported_files: int
    seams: list[evidence.Seam]
    wrapped: list[str] = []
    """Seams, of any process, at which something of ours stands instead of vLLM's own callable."""


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """Every request of a run has finished or was refused."""

    elapsed_ns: int


class Stopped(Message, frozen=True, kw_only=True, tag="stopped"):
    """The engine has shut down; its host ends next."""


class Replayer(Message, frozen=True, kw_only=True, tag="replayer"):
    """A process that replays captured calls has imported vLLM."""

    vllm_version: str
    vllm_path: str
    versions: dict[str, str]
    device_name: str
    replays_masks: bool
    top_k_ties: evidence.TopKTies
    seams: list[evidence.Seam]


class ArmDone(Message, frozen=True, kw_only=True, tag="arm-done"):
    """All repetitions of an arm of a call were told of."""


FromTemplate = Warm | Failed | Forked | Ended
FromHost = (
    Ready
    | Refused
    | Crashed
    | Described
    | Done
    | Stopped
    | evidence.Emission
    | evidence.Refusal
    | evidence.Step
    | evidence.Fault
)
FromReplayer = Replayer | Failed | ArmDone | evidence.Replayed | evidence.ReplayFailure
