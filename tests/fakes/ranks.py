"""Writes, call by call, what a rank would have recorded of its collectives and decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import msgspec

from tprig import evidence


class Fields(TypedDict, total=False):
    """What a call may have otherwise than an all-reduce of the TP group has it."""

    kind: str
    shape: Sequence[int]
    backend: str
    group: str
    ranks: Sequence[int]
    dtype: str
    root: int
    reduction: str
    mode: str


CALL_NS = 100
TP = "tp:0"


class Rank:
    """One rank's records, in the order in which its methods are called."""

    def __init__(self, rank: int = 0, ranks: Sequence[int] = (0, 1)) -> None:
        self.rank = rank
        self.ranks = list(ranks)
        self.records: list[evidence.RankRecord] = [coverage()]
        self.calls: list[tuple[int, int, int | None]] = []
        self.now_ns = 1_000
        self.in_step = -1
        self._ids: dict[str, int] = {}
        self._told = 0

    # --- decisions ---

    def step(self, tokens: Mapping[str, int] | None = None, **facts: object) -> Rank:
        """A step begins, for which the core has scheduled these tokens."""
        self.in_step += 1
        return self.decide("schedule", tokens=dict(tokens or {"a": 4}), **facts)

    def decide(self, kind: str, **facts: object) -> Rank:
        """Something is settled."""
        self.flush()
        self.records.append(
            msgspec.convert(
                {
                    "type": "decision",
                    "step": max(self.in_step, 0),
                    "at": len(self.calls),
                    "kind": kind,
                    "facts": facts,
                },
                evidence.Decision,
            )
        )
        return self

    def value(self, stage: str, digest: str) -> Rank:
        """A tensor has this digest."""
        self.records.append(
            evidence.StageDigest(
                step=self.in_step, stage=stage, ordinal=0, dtype="float32", shape=[2], digest=digest
            )
        )
        return self

    # --- collectives ---

    def call(
        self,
        kind: str = "all_reduce",
        shape: Sequence[int] | None = (4, 8),
        *,
        at: str = "model.py:forward:1",
        backend: str | None = "cpu-shm",
        left: bool = True,
        **fields: object,
    ) -> Rank:
        """A collective and what carries it.

        Args:
            kind: what it does.
            shape: of the tensor.
            at: the caller's frame.
            backend: of the wire operation; None for a call without one.
            left: False when the rank is still in it.
            fields: of the operation, other than those of an all-reduce in the TP group.
        """
        common: dict[str, object] = {
            "kind": kind,
            "group": TP,
            "ranks": self.ranks,
            "shape": None if shape is None else list(shape),
            "dtype": "float32",
            "reduction": "sum" if "reduce" in kind else None,
            "location": [at],
        } | fields
        number = self._operation(layer="semantic", backend=None, **common)
        begin_ns = self.now_ns
        place = len(self.calls)
        self.calls.append((number, begin_ns, None))
        if backend is not None:
            self.wire(backend, left=left, **common)
        self.now_ns += CALL_NS
        if left:
            self.calls[place] = (number, begin_ns, self.now_ns)
            self.now_ns += 1
        return self

    def wire(self, backend: str, *, left: bool = True, **fields: object) -> Rank:
        """A wire operation by itself."""
        number = self._operation(layer="wire", backend=backend, **fields)
        begin_ns = self.now_ns + 1
        self.calls.append((number, begin_ns, begin_ns + CALL_NS // 2 if left else None))
        return self

    def replay(self, template: str) -> Rank:
        """A captured graph runs."""
        number = self._operation(
            layer="graph", kind="replay", backend=None, group="", ranks=self.ranks, shape=None,
            dtype=None, mode="replay", template=template,
        )  # fmt: skip
        self.calls.append((number, self.now_ns, self.now_ns + 1))
        self.now_ns += 2
        return self

    def template(self, key: str, digest: str, *shapes: Sequence[int]) -> Rank:
        """A graph was captured that holds all-reduces of these shapes."""
        operations = [
            self._operation(
                layer="semantic", kind="all_reduce", backend=None, group=TP, ranks=self.ranks,
                shape=list(shape), dtype="float32", reduction="sum", mode="capture", location=[],
            )
            for shape in shapes
        ]  # fmt: skip
        record = evidence.GraphTemplate(key=key, digest=digest, operations=operations)
        self.records.append(record)
        return self

    def _operation(self, **fields: object) -> int:
        key = repr(sorted(fields.items()))
        if key not in self._ids:
            self._ids[key] = len(self._ids)
            told = {"type": "operation", "id": self._ids[key], **fields}
            self.records.append(msgspec.convert(told, evidence.Operation))
        return self._ids[key]

    # --- records ---

    def flush(self) -> None:
        """Write the calls that were left into the stream."""
        told = self.calls[self._told :]
        end = next((i for i, call in enumerate(told) if call[2] is None), len(told))
        if told[:end]:
            self.records.append(
                evidence.Calls(
                    first=self._told,
                    operations=[number for number, _, _ in told[:end]],
                    enter_ns=[enter for _, enter, _ in told[:end]],
                    leave_ns=[leave or 0 for _, _, leave in told[:end]],
                )
            )
            self._told += end

    def ring(self, last: int | None = None) -> evidence.Ring:
        """What its shared memory held at the end: all calls, or the last few."""
        first = 0 if last is None else len(self.calls) - last
        kept = self.calls[first:]
        return evidence.Ring(
            rank=self.rank,
            first=first,
            operations=[number for number, _, _ in kept],
            enter_ns=[enter for _, enter, _ in kept],
            leave_ns=[leave for _, _, leave in kept],
        )

    def progress(
        self, state: str = "running", at_ns: int = 0, entered: int = -1
    ) -> evidence.Progress:
        """How far it was when the client looked."""
        count = len(self.calls) if entered < 0 else entered
        told = {
            "type": "progress",
            "rank": self.rank,
            "at_ns": at_ns,
            "state": state,
            "entered": count,
            "left": sum(leave is not None for _, _, leave in self.calls),
            "step": max(self.in_step, 0),
        }
        return msgspec.convert(told, evidence.Progress)


def coverage(*, hooked: bool = True) -> evidence.Coverage:
    """The account of a recorder that watches the one path there is."""
    return evidence.Coverage(
        path="all_reduce", layer="semantic", hooked=hooked, needed=True, detail="a seam"
    )


def ranks(count: int, play: Callable[[Rank], object]) -> list[Rank]:
    """As many ranks, each of which plays its part."""
    made = [Rank(rank, range(count)) for rank in range(count)]
    for rank in made:
        play(rank)
    return made
