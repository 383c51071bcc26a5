"""What of a claim's evidence is missing, cut short or resting on a seam that has moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tprig.checkers.checker import Checker, Need, Runs
from tprig.checkers.wording import counted
from tprig.evidence import Claim, RankRecord, Seam
from tprig.history import RunHistory, Stream

_COMPARED = ({"off", "on"}, {"tp1", "tp2"}, {"baseline", "candidate"}, {"1-first", "1-second"})
"""Roles of runs that are held against each other."""


def cast(claim: Claim, runs: Mapping[str, RunHistory]) -> dict[str, RunHistory]:
    """Role -> history, for the runs of the claim that were recorded."""
    return {role: runs[run] for role, run in claim.runs.items() if run in runs}


def gaps(claim: Claim, checker: Checker, runs: Mapping[str, RunHistory]) -> list[str]:
    """What is missing for the claim to be decided; empty when all is there."""
    lacking = [role for role in checker.roles if role not in claim.runs]
    found = [f"the claim casts no run as {role}" for role in lacking]
    if not claim.runs:
        found.append("the claim names no run")
    for role, run in claim.runs.items():
        if run not in runs:
            found.append(f"run {run} ({role}) was never recorded")
            continue
        for need in checker.needs:
            found += _NEEDS[need](runs[run])
    if set(claim.runs) in _COMPARED:
        found += _asked_differently(cast(claim, runs))
    return list(dict.fromkeys(found))


def _asked_differently(runs: Runs) -> list[str]:
    """Runs that are compared must have been asked the same."""
    asked = {role: run for role, run in runs.items() if run.workload is not None}
    first = next(iter(asked.values()), None)
    return [
        f"run {run.id} ({role}) was not asked what run {first.id} was: their requests differ"
        for role, run in asked.items()
        if first is not None and run.workload != first.workload
    ]


def moved_seams(checker: Checker, runs: Runs) -> list[str]:
    """Seams that the checker's evidence rests on and that are not as expected."""
    return list(
        dict.fromkeys(
            f"{_place(seam)}: expected {seam.expected}, found {seam.found}"
            for run in runs.values()
            for seam in _seams(run)
            if seam.name in checker.seams and not seam.ok
        )
    )


def _place(seam: Seam) -> str:
    """A recorder that could not be installed has a name, and no place in vLLM."""
    return f"seam {seam.name} ({seam.target})" if seam.target else f"recorder {seam.name}"


def _seams(run: RunHistory) -> Iterator[Seam]:
    if run.engine is not None and run.engine.effective is not None:
        yield from run.engine.effective.seams
    for stream in run.ranks.values():
        yield from (record for record in stream.records if isinstance(record, Seam))


def _run(run: RunHistory) -> list[str]:
    if run.run is None:
        return [f"run {run.id} has no run.json: it never ended"]
    if not run.run.complete:
        return [f"run {run.id} is not complete: a request neither finished nor was refused"]
    return []


def _stream(what: str, stream: Stream[object] | None) -> list[str]:
    if stream is None:
        return [f"{what} were never recorded"]
    if not stream.complete:
        return [f"{stream.path} was cut short: it has no end record"]
    if stream.dropped:
        return [f"{stream.path} lacks {counted(stream.dropped, 'record')} that its writer dropped"]
    return []


def _ranks(run: RunHistory) -> list[str]:
    streams: dict[int, Stream[RankRecord]] = dict(run.ranks)
    found = [text for rank in streams for text in _stream("", streams[rank])]
    expected = run.run.rank_streams if run.run is not None else None
    if not streams or (expected is not None and len(streams) < expected):
        number = "at least 1" if expected is None else expected
        found.append(f"run {run.id}: expected {number} rank streams, found {len(streams)}")
    return found


def _document(what: str, document: object | None) -> list[str]:
    return [f"{what} is not there"] if document is None else []


_NEEDS: Mapping[Need, Callable[[RunHistory], list[str]]] = {
    "run": _run,
    "workload": lambda run: _document(f"requests.json of run {run.id}", run.workload),
    "outputs": lambda run: _stream(f"outputs of run {run.id}", run.outputs),
    "steps": lambda run: _stream(f"steps of run {run.id}", run.steps),
    "ranks": _ranks,
    "events": lambda run: _stream(
        f"events of the engine of run {run.id}", run.engine.events if run.engine else None
    ),
}
