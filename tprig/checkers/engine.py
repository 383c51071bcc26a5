"""Judges engines: that they lived as long as they were needed, served what was asked, and went.

The first of a crash, a loss and a deadline is the cause; what of the kind follows is its
consequence and is told in the notes. Stopping an engine by force is no fault of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.emitted import place, refusals
from tprig.checkers.wording import counted
from tprig.evidence import Claim, EngineEvent, Finding, Location
from tprig.history import FIRST_RECORD_LINE, RunHistory

_FATAL = {"crashed": "engine.crash", "lost": "engine.crash", "deadline": "engine.hang"}

_Events = Sequence[tuple[int, EngineEvent]]
"""Events with their lines."""


def check_engine(claim: Claim, runs: Runs) -> Judgement:  # noqa: ARG001 - a checker's signature
    """Judge every role's engine once, and every run: measured `engines` and `runs`."""
    judgement = Judgement()
    engines: dict[str, RunHistory] = {}
    for run in runs.values():
        if run.engine is not None and run.engine.events is not None:
            engines.setdefault(run.engine.id, run)
        judgement.findings += _refusals(run)
    for run in engines.values():
        _judge_events(run, judgement)
    judgement.measured = {
        "engines": len(engines),
        "runs": sum(run.run is not None for run in runs.values()),
    }
    return judgement


def _refusals(run: RunHistory) -> Iterator[Finding]:
    for request, (line, refusal) in refusals(run).items():
        yield Finding(
            anomaly="engine.refusal",
            message=f"expected the request to be served, found {refusal.error}: {refusal.message}",
            where=place(run, line, request),
        )


def _judge_events(run: RunHistory, judgement: Judgement) -> None:
    if run.engine is None or run.engine.events is None:
        return
    name, stream = run.engine.id, run.engine.events
    events = list(enumerate(stream.records, FIRST_RECORD_LINE))
    fatal = [(line, event) for line, event in events if event.event in _FATAL]
    found = [(line, *_fatal(event, events)) for line, event in fatal[:1]]
    found += [(line, *told) for line, event in events if (told := _other(event)) is not None]
    judgement.findings += [
        Finding(
            anomaly=anomaly,
            message=text,
            where=Location(file=stream.path, line=line, run=run.id),
        )
        for line, anomaly, text in found
    ]
    _note(judgement, name, "afterwards", [event for _, event in fatal[1:]])
    _note(judgement, name, "signalled", [e for _, e in events if e.event == "signalled"])
    if not _gone([event for _, event in events]):
        judgement.missing.append(
            f"engine {name}: expected `stopped` and then `cleaned` among its last events, found "
            f"{_last(events)}: it was never shown to be gone"
        )


def _fatal(event: EngineEvent, events: _Events) -> tuple[str, str]:
    anomaly = _FATAL[event.event]
    if anomaly == "engine.crash":
        who = f" (process {', '.join(map(str, event.pids))})" if event.pids else ""
        found = f"found it {event.event}{who}: {event.detail}"
        return anomaly, f"expected the engine to live until it was stopped, {found}"
    stacks = [e for _, e in events if e.event == "stacks"]
    processes = counted(sum(len(e.pids) for e in stacks), "process", "processes")
    saved = ", ".join(path for e in stacks for path in e.paths)
    return anomaly, (
        f"expected progress before the deadline, found none: {event.detail}; stacks of {processes} "
        f"are saved ({saved or 'no file'})"
    )


def _other(event: EngineEvent) -> tuple[str, str] | None:
    if event.event == "remains" and (event.pids or event.paths):
        left = [f"process {pid}" for pid in event.pids] + event.paths
        return "engine.leak", (
            f"expected nothing of the engine to be left, found {', '.join(left)}: {event.detail}"
        )
    if event.event == "leaked":
        return "gpu.leak", (
            f"expected the devices as they were before the engine, found {event.detail}"
        )
    if event.event == "refused":
        return "engine.refusal", f"expected the engine to start, found it refused: {event.detail}"
    return None


def _gone(events: Sequence[EngineEvent]) -> bool:
    """True when the last word is that the engine stopped, and then that it was cleaned up."""
    names = [event.event for event in events]
    if "stopped" not in names or "cleaned" not in names:
        return False
    begun = max((i for i, name in enumerate(names) if name in ("launching", "ready")), default=-1)
    return begun < names.index("stopped") < len(names) - 1 - names[::-1].index("cleaned")


def _last(events: _Events) -> str:
    return ", ".join(event.event for _, event in events[-3:]) or "none"


def _note(judgement: Judgement, name: str, what: str, events: Sequence[EngineEvent]) -> None:
    if events:
        told = "; ".join(f"{event.event}: {event.detail}" for event in events)
        judgement.notes[f"{name} {what}"] = told


ENGINE = Checker(
    name="engine",
    roles=(),
    needs=("outputs", "events"),
    seams=(),
    function=check_engine,
)
