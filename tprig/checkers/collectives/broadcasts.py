"""Whether each rank took what the engine core broadcast, in its order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tprig.checkers.collectives.settled import differing
from tprig.checkers.collectives.track import Track
from tprig.evidence import Broadcast, Decision, Finding, Location
from tprig.history import FIRST_RECORD_LINE, RunHistory


def schedules(run: RunHistory) -> tuple[tuple[int, Broadcast], ...]:
    """The steps that the core broadcast, with their lines; none where it was not recorded."""
    records = () if run.core is None else run.core.records
    return tuple(
        (line, record)
        for line, record in enumerate(records, FIRST_RECORD_LINE)
        if isinstance(record, Broadcast) and record.facts is not None
    )


def divergences(
    run: RunHistory, by_rank: Mapping[int, Track], without: Collection[int]
) -> Iterator[Finding]:
    """The first step of each rank that is not the one which the core broadcast in its place.

    Args:
        run: with what the core recorded, or without.
        by_rank: what each rank recorded.
        without: ranks that are known to differ from others in what they settled.
    """
    if run.core is None or run.core.dropped:
        return
    sent = schedules(run)
    for track in by_rank.values():
        if not track.lost and track.rank not in without:
            yield from _first(run, sent, track)


def _first(
    run: RunHistory, sent: tuple[tuple[int, Broadcast], ...], track: Track
) -> Iterator[Finding]:
    taken = [(line, d) for line, d in track.decisions if d.kind == "schedule"]
    for (_, broadcast), (line, decision) in zip(sent, taken, strict=False):
        if broadcast.facts != decision.facts:
            ours = differing(broadcast.facts or {}, decision.facts)
            theirs = differing(decision.facts, broadcast.facts or {})
            yield _finding(track, line, decision, f"broadcast {broadcast.number}: {ours}", theirs)
            return
    if len(taken) < len(sent) and track.ended:
        lacking = sent[len(taken)][1]
        yield _finding(track, None, None, f"broadcast {lacking.number}, a step", "nothing")
    if len(taken) > len(sent) and run.core is not None and run.core.complete:
        line, decision = taken[len(sent)]
        yield _finding(track, line, decision, "no further step", "one more")


def _finding(
    track: Track, line: int | None, decision: Decision | None, sent: str, taken: str
) -> Finding:
    return Finding(
        anomaly="decision.divergence",
        message=(
            f"expected rank {track.rank} to take what the engine core sent, {sent}; found that it "
            f"took {taken}"
        ),
        where=Location(
            file=track.path,
            line=line,
            run=track.run,
            step=None if decision is None else decision.step,
            rank=track.rank,
        ),
    )
