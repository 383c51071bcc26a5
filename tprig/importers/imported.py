"""What every importer makes of its files, and the bundle that is made of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tprig import environment, evidence
from tprig.bundle import Writer
from tprig.checkers.premises import IMPORTED
from tprig.clock import utc_now

RUN = "imported"


class ForeignFormatError(ValueError):
    """A file is not what its format says; the message tells which, and what was expected."""


@dataclass
class ImportedRank:
    """What one rank recorded.

    Attributes:
        rank: its number.
        source: the file.
        operations: signatures, each told once; their `id` is their place.
        calls: which operation each call was, in order.
        times_ns: when each call was entered and left, None while it was not; empty without times.
        first: how many calls came before the first that is known.
        missing: what is known to be missing.
    """

    rank: int
    source: str
    operations: list[evidence.Operation] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    times_ns: list[tuple[int, int | None]] = field(default_factory=list)
    first: int = 0
    missing: list[str] = field(default_factory=list)
    _known: dict[bytes, int] = field(default_factory=dict)

    def call(self, operation: evidence.Operation) -> None:
        """Add a call; its operation's `id` is set here."""
        # Structs that hold lists have no hash; what they encode to has.
        key = msgspec.json.encode(operation)
        number = self._known.setdefault(key, len(self.operations))
        if number == len(self.operations):
            self.operations.append(msgspec.structs.replace(operation, id=number))
        self.calls.append(number)

    @property
    def ended(self) -> int:
        """How many calls had been left, up to the first that had not."""
        pending = (i for i, (_, left) in enumerate(self.times_ns) if left is None)
        return next(pending, len(self.calls))


def write_bundle(root: Path, ranks: Sequence[ImportedRank], form: str) -> None:
    """Write a sealed bundle with one claim: that these ranks kept their order.

    Raises:
        BundleError: if it cannot be written.
    """
    writer = Writer(root)
    test = f"import of {form}"
    claim = evidence.Claim(
        id=f"{RUN}/rank-order",
        test=test,
        checker="rank_order",
        anomalies=[],
        runs={IMPORTED: RUN},
        tensor_parallel_size=len(ranks),
        minima={"wire_collectives": 1, "ranks": len(ranks)},
    )
    whole = all(rank.ended == len(rank.calls) for rank in ranks)
    writer.document("plan.json", _plan(claim, test))
    writer.document("environment.json", environment.collect(sys.executable, variables={}))
    with writer.stream("ledger.jsonl", "ledger", writer.bundle) as ledger:
        for event in ("planned", "collected", "started", "finished"):
            told = {"type": "test", "test": test, "event": event, "at": utc_now()}
            told |= {"outcome": "passed"} if event == "finished" else {}
            ledger.write(msgspec.convert(told, evidence.LedgerEvent))
    writer.document(f"runs/{RUN}/run.json", _run(len(ranks), test, complete=whole))
    for rank in ranks:
        _write_rank(writer, rank)
    if not whole:
        with writer.stream(f"runs/{RUN}/forensics.jsonl", "forensics", RUN) as forensics:
            for rank in ranks:
                forensics.write(_pending(rank))
    writer.seal()


def _plan(claim: evidence.Claim, test: str) -> evidence.Plan:
    return evidence.Plan(
        version=evidence.SCHEMA_VERSION,
        created=utc_now(),
        command=["tprig", "import"],
        seed=0,
        profile="imported",
        platform="cuda",
        tests=[test],
        claims=[claim],
    )


def _run(ranks: int, test: str, *, complete: bool) -> evidence.Run:
    return evidence.Run(
        id=RUN,
        engine=RUN,
        test=test,
        recorders=[],
        faults=[],
        started=utc_now(),
        elapsed_s=0.0,
        complete=complete,
        rank_streams=ranks,
    )


def _write_rank(writer: Writer, rank: ImportedRank) -> None:
    path = f"runs/{RUN}/ranks/rank{rank.rank}.jsonl"
    stream = writer.stream(path, "rank", RUN)
    stream.write(_coverage("the file", detail=rank.source, hooked=True))
    for missing in rank.missing:
        stream.write(_coverage("other files", detail=missing, hooked=False))
    for operation in rank.operations:
        stream.write(operation)
    end = rank.ended
    times = rank.times_ns[:end]
    stream.write(
        evidence.Calls(
            first=rank.first,
            operations=rank.calls[:end],
            enter_ns=[enter for enter, _ in times],
            leave_ns=[left for _, left in times if left is not None],
        )
    )
    if end == len(rank.calls):
        stream.close()
    else:
        stream.abandon()


def _coverage(path: str, *, detail: str, hooked: bool) -> evidence.Coverage:
    return evidence.Coverage(path=path, layer="wire", hooked=hooked, needed=True, detail=detail)


def _pending(rank: ImportedRank) -> evidence.Ring:
    """The calls from the first on that was never left."""
    end = rank.ended
    return evidence.Ring(
        rank=rank.rank,
        first=rank.first + end,
        operations=rank.calls[end:],
        enter_ns=[enter for enter, _ in rank.times_ns[end:]],
        leave_ns=[left for _, left in rank.times_ns[end:]],
    )
