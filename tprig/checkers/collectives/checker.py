"""Judges rank order: every rank issued the same collectives in the same order, and settled alike.

What is certain is found even where records are missing; what records cannot show, or do not
account for, leaves the claim unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.collectives import broadcasts, reconcile, settled, waiting
from tprig.checkers.collectives.alphabet import Alphabet, told
from tprig.checkers.collectives.divergence import Divergence, divergences
from tprig.checkers.collectives.settled import Difference
from tprig.checkers.collectives.track import Track, sequence, tracks
from tprig.checkers.wording import counted
from tprig.evidence import Claim, Decision, Finding, Location, Progress, StageDigest
from tprig.history import RunHistory

LAYERS = (("semantic", "graph"), ("wire",))
"""What is compared on its own: what was asked for, with replays; and what carried it."""


def check_rank_order(claim: Claim, runs: Runs) -> Judgement:
    """Judge every role's run by itself.

    Measured, of the rank that issued the least: `collectives`, `all_reduces`, `gathers`, the same
    on the wire (`wire_...`), `replays`, `steps` and `decisions`; how many `ranks` there are; and
    how many steps (`broadcasts`) the engine core sent them, where it was recorded.
    """
    judgement = Judgement()
    for run in runs.values():
        _judge(claim, run, judgement)
    return judgement


def _judge(claim: Claim, run: RunHistory, judgement: Judgement) -> None:
    alphabet = Alphabet()
    by_rank = tracks(run, alphabet)
    ended = all(track.ended and not track.lost for track in by_rank.values())
    parted = [d for layers in LAYERS for d in _parted(by_rank, layers, alphabet, ended=ended)]
    decisions = list(settled.decisions(list(by_rank.values())))
    findings = [
        *_first_settled(decisions, list(settled.values(list(by_rank.values())))),
        *_templates(by_rank, alphabet),
        *(_finding(d, decisions) for d in _causes(parted)),
    ]
    settled_otherwise = {d.found.rank for d in decisions}
    findings += broadcasts.divergences(run, by_rank, without=settled_otherwise)
    if run.forensics is not None:
        progress = [r for r in run.forensics.records if isinstance(r, Progress)]
        state = waiting.waits(by_rank, progress, alphabet)
        judgement.notes |= waiting.notes(state)
        if state.cycle or not findings:
            findings += waiting.stalls(state, alphabet)
    findings += _truncated(by_rank)
    judgement.findings += findings
    for divergence in parted:
        if divergence.further:
            rank = divergence.found.track.rank
            judgement.notes[f"rank {rank} afterwards"] = counted(divergence.further, "difference")
    _account(claim, by_rank, alphabet, judgement)
    sent = len(broadcasts.schedules(run))
    judgement.measured["broadcasts"] = judgement.measured.get("broadcasts", 0) + sent


def _account(
    claim: Claim, by_rank: Mapping[int, Track], alphabet: Alphabet, judgement: Judgement
) -> None:
    """What was measured, and what the record does not account for."""
    least: dict[str, int] = {}
    for track in by_rank.values():
        judgement.missing += reconcile.unwatched(track)
        judgement.missing += reconcile.unaccounted(track, alphabet)
        judgement.missing += reconcile.off_formula(claim, track, alphabet)
        measured = reconcile.counts(track, alphabet)
        measured["replays"] = int(alphabet.where(layer="graph")[track.signatures].sum())
        measured["steps"] = len({step for _, step in track.starts})
        measured["decisions"] = len(track.decisions)
        least = {name: min(n, least.get(name, n)) for name, n in measured.items()}
    for name, number in (least | {"ranks": len(by_rank)}).items():
        judgement.measured[name] = judgement.measured.get(name, 0) + number


def _parted(
    by_rank: Mapping[int, Track], layers: tuple[str, ...], alphabet: Alphabet, *, ended: bool
) -> Iterator[Divergence]:
    """How ranks part, in each group of ranks that share collectives."""
    on_layers = sum(
        (alphabet.where(layer=layer) for layer in layers[1:]), alphabet.where(layer=layers[0])
    )
    for ranks in alphabet.groups():
        members = [by_rank[rank] for rank in sorted(ranks) if rank in by_rank]
        if len(members) > 1:
            wanted = on_layers & alphabet.shared_by(ranks)
            sequences = [sequence(track, wanted) for track in members]
            yield from divergences(sequences, alphabet, ended=ended)


def _causes(parted: list[Divergence]) -> Iterator[Divergence]:
    """One divergence per rank: what follows on the wire from what was asked for is no other one."""
    seen: set[int] = set()
    for divergence in parted:
        rank = divergence.found.track.rank
        if rank not in seen:
            seen.add(rank)
            yield divergence


# --- what was settled ---------------------------------------------------------------------------


def _first_settled(
    decisions: list[Difference[Decision]], values: list[Difference[StageDigest]]
) -> Iterator[Finding]:
    """The first decision of each rank that differs, and the values that differ before it."""
    first: dict[int, tuple[int, int]] = {}
    for decision in decisions:
        if decision.found.rank not in first:
            first[decision.found.rank] = decision.time
            yield _decision_finding(decision)
    told_of: set[int] = set()
    for value in values:
        rank = value.found.rank
        if rank not in told_of and value.time <= first.get(rank, value.time):
            told_of.add(rank)
            yield _value_finding(value)


def _decision_finding(difference: Difference[Decision]) -> Finding:
    return Finding(
        anomaly="decision.divergence",
        message=f"expected all ranks to settle the same, found {_sides(difference)}",
        where=_where(difference),
    )


def _sides(difference: Difference[Decision]) -> str:
    """`in step 7, draft: rank 0 says run True, rank 1 says run False`."""
    ours = settled.told(difference.ours, difference.theirs)
    theirs = settled.told(difference.theirs, difference.ours)
    most = " as most ranks do" if difference.majority else ""
    return (
        f"in step {difference.step}, {difference.name}: rank {difference.expected.rank} says "
        f"{ours}{most}, rank {difference.found.rank} says {theirs}"
    )


def _value_finding(difference: Difference[StageDigest]) -> Finding:
    ours, theirs = difference.ours, difference.theirs
    return Finding(
        anomaly="value.divergence",
        message=(
            f"expected {difference.name} of step {difference.step} to be {_digest(ours)} as on "
            f"rank {difference.expected.rank}, found {_digest(theirs)} on rank "
            f"{difference.found.rank}: every rank holds the whole of it"
        ),
        where=_where(difference),
    )


def _digest(value: StageDigest | None) -> str:
    return "nothing" if value is None else f"{value.dtype}{value.shape} {value.digest}"


def _where(difference: Difference[Decision] | Difference[StageDigest]) -> Location:
    return Location(
        file=difference.found.path,
        line=difference.line,
        run=difference.found.run,
        step=difference.step,
        rank=difference.found.rank,
    )


# --- what was issued ----------------------------------------------------------------------------


def _finding(divergence: Divergence, decisions: list[Difference[Decision]]) -> Finding:
    found, place = divergence.found, divergence.places[1]
    return Finding(
        anomaly=divergence.anomaly,
        message=f"{_sides_of(divergence)}{_before(divergence, decisions)}",
        where=found.track.where(found.call(place), found.step(place)),
    )


def _sides_of(divergence: Divergence) -> str:
    ours, theirs = divergence.expected, divergence.found
    place = theirs.call(divergence.places[1])
    at = f"as call {theirs.track.first + (len(theirs.track) if place is None else place)}"
    what = "the beginning of a step" if divergence.call is None else told(divergence.call)
    by = f" ({divergence.by})" if divergence.by else " (nothing tells which of them is right)"
    if divergence.anomaly == "collective.extra":
        return (
            f"expected rank {theirs.track.rank} to go on as rank {ours.track.rank} did, found "
            f"{what} {at}, which is one too many{by}"
        )
    instead = "none" if divergence.other is None else told(divergence.other)
    return (
        f"expected {what} as on rank {ours.track.rank}{by}, found {instead} on rank "
        f"{theirs.track.rank} {at}"
    )


def _before(divergence: Divergence, decisions: list[Difference[Decision]]) -> str:
    """The last decision before it in which the two ranks differ."""
    both = {divergence.expected.track.rank, divergence.found.track.rank}
    ends = {
        s.track.rank: s.call(place)
        for s, place in zip((divergence.expected, divergence.found), divergence.places, strict=True)
    }
    earlier = [
        d for d in decisions if {d.expected.rank, d.found.rank} & both and _precedes(d, ends)
    ]
    if not earlier:
        return "; they had settled everything alike before"
    return f"; the last decision in which they differ before it: {_sides(earlier[-1])}"


def _precedes(difference: Difference[Decision], ends: Mapping[int, int | None]) -> bool:
    """True when it was settled before the calls at which two ranks parted."""
    end = ends.get(difference.found.rank)
    return (
        end is None
        or difference.theirs is None
        or (difference.theirs.at - difference.found.first <= end)
    )


def _templates(by_rank: Mapping[int, Track], alphabet: Alphabet) -> Iterator[Finding]:
    """Graphs of the same capture that hold other collectives than on the first rank."""
    first: dict[str, tuple[int, tuple[int, ...]]] = {}
    for rank, track in by_rank.items():
        for line, template, operations in track.templates:
            known_rank, known = first.setdefault(template.key, (rank, operations))
            if operations != known:
                place = next(
                    (i for i, (a, b) in enumerate(zip(known, operations, strict=False)) if a != b),
                    min(len(known), len(operations)),
                )
                ours, theirs = (
                    told(alphabet.operations[ops[place]]) if place < len(ops) else "nothing"
                    for ops in (known, operations)
                )
                yield Finding(
                    anomaly="graph.template",
                    message=(
                        f"expected {template.key} to hold {ours} as its collective {place} as on "
                        f"rank {known_rank}, found {theirs} on rank {rank}"
                    ),
                    where=Location(file=track.path, line=line, run=track.run, rank=rank),
                )
                break


def _truncated(by_rank: Mapping[int, Track]) -> Iterator[Finding]:
    for track in by_rank.values():
        if track.lost:
            yield Finding(
                anomaly="record.truncated",
                message=(
                    f"expected every call of rank {track.rank} to be recorded, found that "
                    f"{', '.join(track.lost)} were lost: what they were can not be known"
                ),
                where=track.where(0),
            )


RANK_ORDER = Checker(
    name="rank_order",
    roles=(),
    needs=("run", "ranks"),
    seams=("collectives", "decisions", "model_runner.execute_model"),
    function=check_rank_order,
)
