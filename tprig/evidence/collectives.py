"""What each rank says of its collectives, and of the decisions that lead to them.

A rank issues far more collectives than a record each could hold, so their signatures are told once
(`Operation`) and their calls in columns (`Calls`). All calls of a rank, of every layer and group,
are numbered in the order in which they were entered: that is one ordered stream.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tprig.evidence.base import Count, Name, Record

Layer = Literal["semantic", "wire", "graph"]
"""`semantic`: what vLLM asks its group for. `wire`: what the chosen backend is asked for, below it.
`graph`: the replay of a captured graph, whose collectives no Python sees."""

Ordinal = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""What arithmetic is done on: sequence numbers and nanoseconds."""
Fact = bool | int | str | None | list[int | str] | dict[str, int]


class Operation(Record, frozen=True, kw_only=True, tag="operation"):
    """The signature of a collective, told before the first call that has it."""

    id: Ordinal
    """Of this stream alone: ranks may number differently."""
    layer: Layer
    kind: Name
    """`all_reduce`, `all_gather`, `gather`, `broadcast`, `send`, ..., or `replay`."""
    backend: str | None
    """What carries it: `cpu-shm`, `pynccl`, `custom`, ...; None on the semantic layer."""
    group: str
    ranks: list[Count]
    """Global ranks of the group; of `send` and `recv`, the two that it concerns."""
    shape: list[Count] | None
    """Elements that this rank gives; of the ragged kinds (`all_gatherv`), of each rank."""
    dtype: str | None
    root: Count | None = None
    """Global rank; of `send` and `recv`, the sender."""
    reduction: str | None = None
    stream: str | None = None
    """CUDA stream; None where there are none. It names no peer, and is never compared."""
    mode: Literal["eager", "capture", "replay"] = "eager"
    location: list[str] = []
    """The innermost frames of the caller, `file:function:line`, plumbing left out."""
    template: str | None = None
    """Of a replay: the digest of what was captured."""


class Calls(Record, frozen=True, kw_only=True, tag="calls"):
    """Consecutive calls, in columns. A gap before `first` was lost."""

    first: Ordinal
    """Sequence number of the first of them: how many calls this rank had entered before."""
    operations: list[Ordinal]
    enter_ns: list[Ordinal]
    """Monotonic clock of the host machine, which its processes share. Empty if nobody looked."""
    leave_ns: list[Ordinal]

    def __post_init__(self) -> None:
        if not len(self.enter_ns) == len(self.leave_ns) in (0, len(self.operations)):
            raise ValueError("expected columns of one length")


class GraphTemplate(Record, frozen=True, kw_only=True, tag="template"):
    """The collectives of a captured graph, in their order."""

    key: Name
    """Which capture it was: `graph <n>`."""
    digest: Name
    """BLAKE2b-128 over the operations' signatures, in hex."""
    operations: list[Ordinal]


class Decision(Record, frozen=True, kw_only=True, tag="decision"):
    """What a rank settled, flushed as it did so: collectives follow from it."""

    step: Count
    at: Ordinal
    """Collectives that this rank had entered before."""
    kind: Literal["schedule", "batch", "acceptance", "draft"]
    """`schedule`: what the core broadcast. `batch`: which graph, at which size. `acceptance`: how
    much each request sampled. `draft`: whether the drafter runs, and how far."""
    facts: dict[str, Fact]
    """What every rank must have settled alike."""


class Broadcast(Record, frozen=True, kw_only=True, tag="broadcast"):
    """A call of all workers that the engine core sent, told before it was."""

    number: Ordinal
    """Broadcasts of this run before it."""
    method: Name
    facts: dict[str, Fact] | None
    """Of a step its schedule, as each rank's decision `schedule` must have it."""


class Coverage(Record, frozen=True, kw_only=True, tag="coverage"):
    """A path that collectives can take, and whether it is watched."""

    path: Name
    layer: Layer | Literal["decision"]
    hooked: bool
    needed: bool
    """True when collectives could have gone this way in this process."""
    detail: str
    """The seam, or why it is not hooked."""


class Progress(Record, frozen=True, kw_only=True, tag="progress"):
    """How far a rank was, as the client read it in shared memory when nothing moved any more."""

    rank: Count
    at_ns: Ordinal
    """Monotonic clock of the host machine."""
    state: Literal["running", "stopped", "dead"] | None
    entered: Ordinal
    left: Ordinal
    step: Count | None


class Ring(Record, frozen=True, kw_only=True, tag="ring"):
    """A rank's last calls, read from shared memory: its stream may lack them."""

    rank: Count
    first: Ordinal
    operations: list[Ordinal]
    enter_ns: list[Ordinal]
    leave_ns: list[Ordinal | None]
    """None of a call that was entered and not left."""

    def __post_init__(self) -> None:
        if not len(self.operations) == len(self.enter_ns) == len(self.leave_ns):
            raise ValueError("expected columns of one length")


ForensicRecord = Progress | Ring
CollectiveRecord = Operation | Calls | GraphTemplate | Decision | Coverage
