"""TP1 against TP2: what rounding explains, and what it does not."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tests.fakes import histories
from tests.tprig.checkers import edits
from tests.tprig.checkers.examples import TP1, TP2
from tprig.checkers.checker import Judgement
from tprig.checkers.parity import PARITY, ROUNDING
from tprig.evidence import Finite, Refusal
from tprig.history import RunHistory

CLAIM = histories.claim("parity", {"tp1": "tp1", "tp2": "tp2"})
TOLERANCE = ROUNDING["cpu", "torch.float32"]


def judged(tp2: RunHistory, tp1: RunHistory = TP1) -> Judgement:
    return PARITY.function(CLAIM, {"tp1": tp1, "tp2": tp2})


def rows(tp2: RunHistory, tp1: RunHistory = TP1) -> list[int | None]:
    findings = judged(tp2, tp1).findings
    assert {found.anomaly for found in findings} <= {"output.tp-parity"}
    return [found.where.row for found in findings]


def moved(run: RunHistory, position: int, by: float) -> RunHistory:
    """The run with one finite logprob of a row moved."""
    return edits.edit_finite(
        run,
        "a",
        position,
        lambda finite: msgspec.structs.replace(
            finite, logprobs=[*finite.logprobs[:2], float(finite.logprobs[2]) + by]
        ),
    )


def with_finite(run: RunHistory, position: int, probabilities: dict[int, float]) -> RunHistory:
    finite = Finite(
        token_ids=list(probabilities),
        logprobs=[math.log(p) for p in probabilities.values()],
        complete=True,
    )
    return edits.edit_row(run, "a", position, finite=finite)


def test_equal_runs_are_measured() -> None:
    judgement = judged(TP2)
    assert (judgement.findings, judgement.missing) == ([], [])
    assert judgement.measured == {"rows": 4, "requests": 1}
    assert judgement.notes["requests that part"] == "0 of 1 (rounding explains 0)"


@pytest.mark.parametrize("sign", [1, -1])
def test_logprobs_may_differ_by_the_tolerance(sign: int) -> None:
    within = judged(moved(TP2, 2, sign * 0.9 * TOLERANCE))
    assert within.findings == []
    assert within.notes["largest logprob difference"] == "3.43e-06 (tolerance 3.81e-06)"
    assert rows(moved(TP2, 2, sign * 1.1 * TOLERANCE)) == [2]


@pytest.mark.parametrize("word", ["nan", "inf"])
def test_what_is_no_number_is_within_no_tolerance(word: str) -> None:
    finite = edits.row_at(TP2, "a", 2).finite
    assert finite is not None
    changed = msgspec.convert(
        {**msgspec.to_builtins(finite), "logprobs": [*finite.logprobs[:2], word]}, Finite
    )
    judgement = judged(edits.edit_row(TP2, "a", 2, finite=changed))
    assert [found.where.row for found in judgement.findings] == [2]
    assert judgement.notes["largest logprob difference"] == "inf (tolerance 3.81e-06)"


def test_the_tolerance_is_that_of_the_dtype() -> None:
    half = {"model__dtype": "torch.bfloat16"}
    tp1, tp2 = edits.edit_config(TP1, **half), edits.edit_config(moved(TP2, 2, 0.05), **half)
    assert rows(tp2, tp1) == []
    assert rows(moved(TP2, 2, 0.05)) == [2]


def test_the_tolerance_grows_with_the_logits() -> None:
    """Logprobs of 0 and -40 at temperature 1 are logits of which one is 20 or more."""
    wide = {9: 1 - math.exp(-40), 4: math.exp(-40)}
    tp1, tp2 = with_finite(TP1, 0, wide), with_finite(TP2, 0, wide)
    within = judged(moved(tp2, 2, 19 * TOLERANCE), tp1)
    assert within.findings == []
    assert within.notes["largest logprob difference"] == "7.25e-05 (tolerance 7.63e-05)"
    assert rows(moved(tp2, 2, 21 * TOLERANCE), tp1) == [2]


def test_the_tolerance_grows_with_the_division_by_temperature() -> None:
    tp2 = moved(TP2, 2, 1.5 * TOLERANCE)
    assert rows(tp2) == [2]
    assert tp2.workload is not None
    (request,) = tp2.workload.requests
    cold = msgspec.structs.replace(request.sampling, temperature=0.5)
    requests = [msgspec.structs.replace(request, sampling=cold)]
    workload = msgspec.structs.replace(tp2.workload, requests=requests)
    assert rows(replace(tp2, workload=workload)) == []


@pytest.mark.parametrize("dtype", ["torch.float64", "torch.bfloat16"])
def test_runs_that_can_not_be_compared_are_said_so(dtype: str) -> None:
    judgement = judged(edits.edit_config(TP2, model__dtype=dtype))
    assert "expected one known platform and dtype" in judgement.missing[0]
    assert judgement.findings == []


def test_rows_without_finite_sets_compare_the_emitted_logprob() -> None:
    bare: dict[str, object] = {"finite": None, "rank": None}
    tp1, tp2 = (edits.edit_row(run, "a", 2, **bare) for run in (TP1, TP2))
    assert rows(tp2, tp1) == []
    assert rows(edits.edit_row(tp2, "a", 2, logprob=-1.5), tp1) == [2]


# --- the edge of a support ------------------------------------------------------------------------


def test_a_token_at_the_edge_may_be_kept_by_one_run_only() -> None:
    edge = 1e-3
    wide = {9: 0.5, 4: 0.5 - 2 * edge, 11: edge, 12: edge}
    total = 1 - edge
    narrow = {token: p / total for token, p in wide.items() if token != 12}
    judgement = judged(with_finite(TP2, 2, narrow), with_finite(TP1, 2, wide))
    assert judgement.findings == []
    assert judgement.notes["rows whose supports differ at the edge"] == "1"
    assert judgement.notes["chance that a row parts"] == "0.00025"


def test_a_token_above_the_edge_may_not() -> None:
    wide = {9: 0.5, 4: 0.2, 11: 0.1, 12: 0.2}
    narrow = {token: p / 0.8 for token, p in wide.items() if token != 12}
    (finding,) = judged(with_finite(TP2, 2, narrow), with_finite(TP1, 2, wide)).findings
    assert "TP1 gives token 12" in finding.message
    assert "lacks [12]" in finding.message


def test_rows_with_nothing_in_common_are_told() -> None:
    assert rows(with_finite(TP2, 2, {1: 0.5, 2: 0.5})) == [2]


# --- partings -------------------------------------------------------------------------------------


def test_equal_logprobs_explain_no_parting() -> None:
    (finding,) = judged(edits.edit_row(TP2, "a", 3, token_id=8)).findings
    assert finding.where.row == 3
    assert "expected token 6 as at TP1, found 8 at TP2" in finding.message
    assert "explains 0" in finding.message


def test_a_parting_is_explained_by_a_difference_and_told_in_the_notes() -> None:
    tp2 = moved(edits.edit_row(TP2, "a", 3, token_id=8), 1, 0.5 * TOLERANCE)
    judgement = judged(tp2)
    assert judgement.findings == []
    assert judgement.measured["rows"] == 4
    assert "request a, row 3" in judgement.notes["first parting"]


def test_rows_after_a_parting_are_not_compared() -> None:
    tp2 = moved(edits.edit_row(TP2, "a", 1, token_id=9), 0, 0.5 * TOLERANCE)
    judgement = judged(moved(tp2, 3, 0.5))
    assert judgement.findings == []
    assert judgement.measured["rows"] == 2


def test_more_partings_than_rounding_explains() -> None:
    tp1, tp2 = histories.tp_pair(11, requests=8)
    assert judged(tp2, tp1).findings == []
    for request in [f"r{i}" for i in range(8)]:
        tp2 = edits.edit_row(tp2, request, 1, token_id=511, finite=None)
    findings = judged(tp2, tp1).findings
    assert {(f.where.request, f.where.row) for f in findings} == {(f"r{i}", 1) for i in range(8)}
    assert "8 of 8 requests part in 16 rows" in findings[0].message


@pytest.mark.parametrize("difference", [1e-3, 1e-2, 0.1])
def test_the_bound_holds_for_gumbel_draws(difference: float) -> None:
    """The docstring's 2d: argmax of logprob + noise flips at most that often."""
    rng = np.random.default_rng(7)
    trials, width = 20_000, 20
    logprobs = rng.normal(0, 2, (trials, width))
    noise = rng.gumbel(size=(trials, width))
    apart = rng.uniform(-difference, difference, (trials, width))
    flips = (logprobs + noise).argmax(1) != (logprobs + apart + noise).argmax(1)
    assert 0 < flips.mean() <= 2 * difference


# --- ends -----------------------------------------------------------------------------------------


def test_equal_tokens_end_alike() -> None:
    assert rows(edits.edit_emission(TP2, 1, finish_reason="stop")) == [4]
    assert rows(edits.drop_row(TP2, "a", 3)) == [3]
    assert rows(replace(TP2, outputs=edits.truncated(TP2.outputs, 1))) == []


def test_a_request_that_one_size_refuses_is_told() -> None:
    assert TP2.outputs is not None
    refusal = Refusal(request="a", error="ValueError", message="no")
    refusing = replace(TP2, outputs=replace(TP2.outputs, records=(refusal,)))
    (finding,) = judged(refusing).findings
    assert "refused (no)" in finding.message
    cut = replace(TP2, outputs=edits.truncated(TP2.outputs, 0))
    assert judged(cut).findings == []


def test_one_run_alone_is_nothing_measured() -> None:
    assert PARITY.function(CLAIM, {"tp1": TP1}).measured == {"rows": 0, "requests": 0}
