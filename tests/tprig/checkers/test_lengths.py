"""Where outputs begin and end, against what was asked for."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.fakes import histories
from tests.tprig.checkers import edits
from tests.tprig.checkers.examples import ON
from tprig.checkers.emitted import emitted
from tprig.checkers.lengths import length_findings
from tprig.evidence import Request
from tprig.history import RunHistory


def told(run: RunHistory) -> list[str]:
    findings = length_findings(run, emitted(run))
    assert {found.anomaly for found in findings} <= {"output.tokens"}
    return [found.message for found in findings]


def asking(**changes: object) -> RunHistory:
    """The literal run, had its request asked for something else."""
    assert ON.workload is not None
    (request,) = ON.workload.requests
    sampling = msgspec.structs.replace(request.sampling, **changes)
    return _with_requests([msgspec.structs.replace(request, sampling=sampling)])


def _with_requests(requests: list[Request]) -> RunHistory:
    assert ON.workload is not None
    return replace(ON, workload=msgspec.structs.replace(ON.workload, requests=requests))


def test_a_sound_run_has_no_findings() -> None:
    assert told(ON) == []
    assert told(asking(max_tokens=4, stop_token_ids=[15])) == []


@pytest.mark.parametrize("first", [0, 2], ids=["said again", "left out"])
def test_emissions_follow_each_other(first: int) -> None:
    (message,) = told(edits.edit_emission(ON, 1, first=first))
    assert f"expected the emission to begin at row 1, found row {first}" in message


def test_a_gap_where_records_were_dropped_proves_nothing() -> None:
    assert told(replace(ON, outputs=edits.dropping(ON.outputs, 0))) == []


def test_max_tokens_bounds_the_rows() -> None:
    (message,) = told(asking(max_tokens=3))
    assert message == "expected at most max_tokens = 3 rows, found 4"


def test_a_length_finish_has_max_tokens_rows() -> None:
    (message,) = told(asking(max_tokens=5))
    assert "expected max_tokens = 5 rows" in message


def test_the_models_own_limit_explains_a_length_finish() -> None:
    prompt = 2
    at_limit = edits.edit_config(asking(max_tokens=5), model__max_model_len=str(prompt + 4))
    below = edits.edit_config(asking(max_tokens=5), model__max_model_len=str(prompt + 5))
    assert told(at_limit) == []
    assert len(told(below)) == 1
    assert told(replace(asking(max_tokens=5), engine=None)) == []


def test_a_stop_token_ends_the_output() -> None:
    going_on = asking(stop_token_ids=[5])
    assert "expected the output to end with stop token 5 at row 1" in told(going_on)[0]
    wrong_reason = asking(stop_token_ids=[6])
    assert "finish reason length" in told(wrong_reason)[0]
    right = edits.edit_emission(wrong_reason, 1, finish_reason="stop", stop_reason=6)
    assert told(right) == []


def test_the_stop_reason_is_the_last_token() -> None:
    run = edits.edit_emission(ON, 1, finish_reason="stop", stop_reason=9)
    assert told(run) == ["expected the last token to be the stop reason 9, found 6"]


def test_a_complete_run_has_an_end_for_every_request() -> None:
    (message,) = told(edits.edit_emission(ON, 1, finish_reason=None))
    assert "expected a finish reason or a refusal, found neither after 4 rows" in message
    assert told(edits.incomplete(edits.edit_emission(ON, 1, finish_reason=None))) == []


def test_a_request_that_was_never_served_is_missed_unless_refused() -> None:
    assert ON.workload is not None
    ghost = msgspec.structs.replace(ON.workload.requests[0], id="ghost")
    (finding,) = length_findings(
        run := _with_requests([*ON.workload.requests, ghost]), emitted(run)
    )
    assert (finding.where.request, finding.where.file) == ("ghost", "runs/on/outputs.jsonl")
    _, refusing = histories.pair(1, refused=2)
    assert told(refusing) == []


def test_a_request_that_nobody_asked_for_is_told() -> None:
    (message,) = told(_with_requests([]))
    assert message == "expected a request of the workload, found one it lacks"


def test_without_a_workload_only_the_order_is_judged() -> None:
    run = replace(ON, workload=None)
    assert told(run) == []
    assert len(told(edits.edit_emission(run, 1, first=3))) == 1
