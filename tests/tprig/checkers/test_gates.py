"""A gate holds when the offence is refused for its reason, and its neighbour is not."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.fakes import histories
from tests.tprig.checkers.examples import REASON, gate_claim, literal, started
from tprig import evidence
from tprig.checkers.verdict import judge_claim
from tprig.history import RunHistory

ALLOWED = started("allowed", "ready")


def judged(offence: RunHistory, allowed: RunHistory = ALLOWED) -> evidence.Verdict:
    return judge_claim(gate_claim(), {"offence": offence, "allowed": allowed})


@pytest.mark.parametrize(
    "words",
    [
        REASON,
        "ValidationError: 1 validation error for VllmConfig\n Value error, Adaptive Verification",
    ],
)
def test_a_refusal_that_names_the_reason_passes(words: str) -> None:
    """An engine that did not start has told nothing of itself: no effective.json is wanted."""
    offence = started("offence", "refused", words)
    assert offence.engine is not None
    offence = replace(offence, engine=replace(offence.engine, effective=None))
    found = judged(offence)
    assert (found.verdict, found.measured) == ("pass", {"refused": 1, "accepted": 1})
    assert found.notes["refused with"] == words


@pytest.mark.parametrize(
    "words",
    [
        "ValueError: out of memory",
        "RuntimeError: disable adaptive verification",
        "AssertionError: ValueError: disable adaptive verification",
    ],
)
def test_another_reason_or_kind_is_none(words: str) -> None:
    found = judged(started("offence", "refused", words))
    assert (found.verdict, list(found.failures)) == ("fail", ["gate.wrong-reason"])


def test_an_engine_that_crashed_was_not_refused() -> None:
    found = judged(started("offence", "crashed", "exit code -11"))
    assert found.verdict == "unknown"
    assert "what became of the offence" in found.reason


# --- requests -----------------------------------------------------------------------------------

REQUESTS = msgspec.structs.replace(gate_claim(), runs={"requests": "on"}, refusal="temperature > 0")
REFUSED = evidence.Refusal(
    request="offence", error="ValueError", message="replay requires temperature > 0"
)


def served(*refusals: evidence.Refusal, allowed: bool = True) -> RunHistory:
    """The run of a request that is allowed, with what was refused before."""
    run = literal("on", masks=True)
    assert run.outputs is not None
    emissions = [
        msgspec.structs.replace(record, request="allowed")
        for record in run.outputs.records
        if isinstance(record, evidence.Emission) and allowed
    ]
    return replace(run, outputs=histories.stream(run.outputs.path, [*refusals, *emissions]))


def test_a_request_is_refused_beside_one_that_is_served() -> None:
    assert judge_claim(REQUESTS, {"on": served(REFUSED)}).verdict == "pass"


@pytest.mark.parametrize(
    ("run", "anomaly"),
    [
        (served(msgspec.structs.replace(REFUSED, message="no")), "gate.wrong-reason"),
        (served(msgspec.structs.replace(REFUSED, error="TypeError")), "gate.wrong-reason"),
        (
            served(REFUSED, msgspec.structs.replace(REFUSED, request="allowed"), allowed=False),
            "gate.over-refusal",
        ),
    ],
)
def test_a_request_s_gate_fails_by_its_name(run: RunHistory, anomaly: str) -> None:
    found = judge_claim(REQUESTS, {"on": run})
    assert (found.verdict, list(found.failures)) == ("fail", [anomaly])


def test_an_offending_request_that_is_served_is_a_missing_gate() -> None:
    run = served()
    assert run.outputs is not None
    both = [
        *run.outputs.records,
        *(
            msgspec.structs.replace(record, request="offence")
            for record in run.outputs.records
            if isinstance(record, evidence.Emission)
        ),
    ]
    found = judge_claim(
        REQUESTS, {"on": replace(run, outputs=histories.stream(run.outputs.path, both))}
    )
    assert (found.verdict, list(found.failures)) == ("fail", ["gate.missing"])


def test_what_is_not_on_record_is_unknown() -> None:
    assert judge_claim(REQUESTS, {"on": served()}).verdict == "unknown"
