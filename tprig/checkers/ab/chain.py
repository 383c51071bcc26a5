"""Whether the runs are those that were planned, in their order, and as they were written.

Each measured run has a sample: digests of the plan, of its streams, and of the sample before it.
Whoever alters, swaps or leaves out a run breaks the chain, unless all that follows is made anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tprig.evidence import (
    ArmName,
    Claim,
    Comparison,
    GpuReading,
    Location,
    PairOrder,
    Sample,
)
from tprig.history import RunHistory, Stream

COPIES = "copies"
"""The diagnostic runs, after the last pair, in which copies to the host are recorded."""


def role(pair: int, arm: ArmName) -> str:
    """The role of a measured run in its claim: `p003.a`."""
    return f"p{pair:03d}.{arm}"


def copies_role(arm: ArmName) -> str:
    """The role of an arm's diagnostic run."""
    return f"{COPIES}.{arm}"


def arms_of(order: PairOrder) -> tuple[ArmName, ArmName]:
    """The arms of a pair in the order in which they run."""
    return ("a", "b") if order == "ab" else ("b", "a")


def roles(comparison: Comparison) -> list[str]:
    """The roles of all runs that have a sample, in order of time."""
    pairs = enumerate(comparison.order)
    measured = [role(pair, arm) for pair, order in pairs for arm in arms_of(order)]
    return [*measured, copies_role("a"), copies_role("b")]


def digest(record: object) -> str:
    """SHA-256 over a record's canonical JSON, in hex."""
    # Raw parts of a record keep the white space of the document that they were read from.
    plain = msgspec.json.decode(msgspec.json.encode(record))
    return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()


def stream_digest(records: Iterable[object]) -> str:
    """SHA-256 over the canonical JSON lines of a stream's records, in hex."""
    total = hashlib.sha256()
    for record in records:
        total.update(msgspec.json.encode(record, order="deterministic") + b"\n")
    return total.hexdigest()


@dataclass(frozen=True)
class Conditions:
    """Under what a run was measured; fields as of `Sample`."""

    began_ns: int
    foreign_load: float | None
    readings: tuple[GpuReading, ...] = ()


def link(
    claim: Claim,
    run: RunHistory,
    conditions: Conditions,
    *,
    position: int,
    previous: str | None,
    design: str | None = None,
) -> Sample:
    """The sample of a run in its place.

    Args:
        claim: the planned one.
        run: with its streams, and its engine's spec.
        conditions: of the measurement.
        position: place among the samples of the claim.
        previous: digest of the sample before.
        design: digest of the claim, where it is known already.
    """
    return Sample(
        run=run.id,
        claim=claim.id,
        design=design or digest(claim),
        position=position,
        previous=previous,
        began_ns=conditions.began_ns,
        spec=_spec(run),
        steps=_stream(run.steps),
        outputs=_stream(run.outputs),
        foreign_load=conditions.foreign_load,
        readings=list(conditions.readings),
    )


@dataclass(frozen=True)
class Break:
    """A place at which the record contradicts itself or its plan."""

    message: str
    where: Location


def breaks(claim: Claim, runs: Mapping[str, RunHistory]) -> Iterator[Break]:
    """All breaks of the chain; runs that are not there are not among them.

    Args:
        claim: the planned one, with its comparison.
        runs: role -> history.
    """
    assert claim.comparison is not None
    design, previous, began_ns = digest(claim), None, -1
    gap = False
    for position, name in enumerate(roles(claim.comparison)):
        run = runs.get(name)
        if run is None or run.sample is None:
            # What follows can not be held against it; that it lacks is told elsewhere.
            gap = True
            continue
        sample = run.sample
        expected = link(
            claim,
            run,
            Conditions(sample.began_ns, sample.foreign_load, tuple(sample.readings)),
            position=position,
            previous=sample.previous if gap else previous,
            design=design,
        )
        yield from _unlike(run, expected, sample)
        if sample.began_ns <= began_ns:
            yield _break(run, "began_ns", f"more than {began_ns}", sample.began_ns)
        previous, began_ns, gap = digest(sample), sample.began_ns, False


def _spec(run: RunHistory) -> str:
    return digest(run.engine.arm if run.engine is not None else None)


def _stream(stream: Stream[Any] | None) -> str:
    return stream_digest(stream.records if stream is not None else ())


_MEANS: Mapping[str, str] = {
    "design": "the plan was changed after this run, or the run is another plan's",
    "previous": "the sample before it was changed, or runs were swapped",
    "position": "runs were swapped or left out",
    "spec": "the run is another engine's, or what that one was asked for was changed",
    "steps": "the steps' times were changed",
    "outputs": "the outputs were changed",
    "run": "the sample is another run's",
    "claim": "the sample is another claim's",
    "began_ns": "the runs were not made in the planned order",
}


def _unlike(run: RunHistory, expected: Sample, found: Sample) -> Iterator[Break]:
    for name in expected.__struct_fields__:
        want, have = getattr(expected, name), getattr(found, name)
        if want != have:
            yield _break(run, name, want, have)


def _break(run: RunHistory, field: str, want: object, have: object) -> Break:
    message = f"expected {field} {want} in the sample, found {have}: {_MEANS[field]}"
    return Break(message, Location(file=f"runs/{run.id}/sample.json", run=run.id))
