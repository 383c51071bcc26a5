"""Judges whether what must be refused is refused, for its reason, and nothing else with it.

Two shapes: an engine that must not start beside one that does (roles `offence` and `allowed`), or
one engine that must refuse the request `offence` and serve the request `allowed` (role `requests`).
A refusal counts when it is a ValueError that says why; whatever else ends an engine is no gate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.emitted import emitted, place, refusals
from tprig.evidence import Claim, EngineEvent, Finding, Location
from tprig.history import FIRST_RECORD_LINE, RunHistory

OFFENCE, ALLOWED, REQUESTS = "offence", "allowed", "requests"
REFUSAL = "ValueError"


@dataclass(frozen=True)
class _Outcome:
    """What became of an engine or a request."""

    accepted: bool
    words: str
    where: Location


def check_gate(claim: Claim, runs: Runs) -> Judgement:
    """Judge one gate: measured `refused` offences and `accepted` neighbours."""
    judgement = Judgement({"refused": 0, "accepted": 0})
    outcomes = dict(_requests(runs[REQUESTS]) if REQUESTS in runs else _engines(runs))
    for name in (OFFENCE, ALLOWED):
        if name not in outcomes:
            judgement.missing.append(f"it is not on record what became of the {name}")
    offence, allowed = outcomes.get(OFFENCE), outcomes.get(ALLOWED)
    if offence is not None:
        judgement.measured["refused"] = int(not offence.accepted)
        judgement.findings += _of_offence(claim, offence)
        judgement.notes["refused with"] = offence.words
    if allowed is not None:
        judgement.measured["accepted"] = int(allowed.accepted)
        if not allowed.accepted:
            message = f"expected it accepted without the offence, found it refused: {allowed.words}"
            judgement.findings.append(_finding("gate.over-refusal", message, allowed))
    return judgement


def _of_offence(claim: Claim, offence: _Outcome) -> Iterator[Finding]:
    wanted = f"expected a {REFUSAL} that says {claim.refusal!r}"
    if offence.accepted:
        yield _finding("gate.missing", f"{wanted}, found it accepted", offence)
    elif not _says(offence.words, claim.refusal):
        yield _finding(
            "gate.wrong-reason", f"{wanted}, found it refused with {offence.words}", offence
        )


def _says(words: str, reason: str) -> bool:
    """Whether a refusal is of the right kind and names the reason, wherever it was raised."""
    kind, _, _ = words.partition(":")
    # Validation of vLLM's configuration wraps the ValueErrors of its parts.
    right = kind in (REFUSAL, "ValidationError", "VLLMValidationError")
    return right and reason.lower() in words.lower()


def _finding(anomaly: str, message: str, outcome: _Outcome) -> Finding:
    return Finding(anomaly=anomaly, message=message, where=outcome.where)


def _engines(runs: Runs) -> Iterator[tuple[str, _Outcome]]:
    """By role, what the engine's events say: it was ready, or it was refused."""
    for role, run in runs.items():
        events = run.engine.events if run.engine is not None else None
        for line, event in enumerate(events.records if events else (), FIRST_RECORD_LINE):
            if isinstance(event, EngineEvent) and event.event in ("ready", "refused"):
                where = Location(file=events.path if events else "", line=line, run=run.id)
                yield role, _Outcome(event.event == "ready", event.detail, where)
                break


def _requests(run: RunHistory) -> Iterator[tuple[str, _Outcome]]:
    """By id, what the outputs say of a request."""
    refused = refusals(run)
    for name, (line, refusal) in refused.items():
        words = f"{refusal.error}: {refusal.message}"
        yield name, _Outcome(accepted=False, words=words, where=place(run, line, name))
    for name, request in emitted(run).items():
        if name not in refused and request.rows:
            yield name, _Outcome(accepted=True, words="", where=place(run, request.line, name))


GATE = Checker(
    name="gate",
    roles=(),
    # A start, a refusal and an emission are certain, whatever comes after them.
    needs=(),
    seams=(),
    function=check_gate,
)
