"""The judgement of a comparison: what is lost, what is void, and what was tampered with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from tests.fakes import measured
from tests.tprig.checkers.ab.designs import comparison
from tprig import evidence
from tprig.checkers.ab.order import draw_order
from tprig.checkers.verdict import judge_claim
from tprig.history import RunHistory


def judged(case: measured.Measured, claim: evidence.Claim | None = None) -> evidence.Verdict:
    return judge_claim(claim or case.claim, case.by_id)


def test_no_difference_is_a_go() -> None:
    verdict = judged(measured.measured())
    assert verdict.verdict == "pass"
    assert verdict.measured == {"pairs": 10, "void pairs": 0, "rows": 800}
    assert verdict.notes["throughput"].startswith("GO: ")
    assert verdict.notes["arms differ in"].startswith("argument:return_sampling_mask")


def test_a_loss_is_a_no_go_with_its_size() -> None:
    verdict = judged(measured.measured(slowness=measured.steady(loss=0.1)))
    assert (verdict.verdict, verdict.failures) == ("fail", {"cost.regression": 1})
    assert "expected a loss of at most 2% of throughput" in verdict.findings[0].message
    assert "found -9.9" in verdict.findings[0].message or "found -10.0" in (
        verdict.findings[0].message
    )
    for metric in ("step_mean", "step_p50", "step_p95", "step_p99", "first_token", "inter_token"):
        assert verdict.notes[metric].startswith("NO-GO: -"), metric


def test_a_gain_is_a_go_and_no_equivalence() -> None:
    faster = measured.steady(loss=-0.1)
    assert judged(measured.measured(slowness=faster)).verdict == "pass"
    verdict = judged(measured.measured(comparison(equivalence=True), faster))
    assert verdict.failures == {"cost.regression": 1}
    assert "expected a change of at most 2%" in verdict.findings[0].message


def test_noise_leaves_it_open_and_says_how_many_pairs_would_decide() -> None:
    verdict = judged(measured.measured(slowness=measured.steady(deviation=0.05)))
    assert verdict.verdict == "unknown"
    assert verdict.reason.startswith("INCONCLUSIVE: throughput ")
    assert "pairs would decide" in verdict.reason


def test_only_gates_decide() -> None:
    """A tail that is slower is told, and decides where the plan says so."""

    def slow_last(run: RunHistory) -> RunHistory:
        return measured.longer_step(run, step=19, by_ns=2_000_000)

    for gates, expected in ((["throughput"], "pass"), (["throughput", "step_p95"], "fail")):
        case = measured.measured(comparison(gates=gates), late=slow_last)
        verdict = judged(case)
        assert (verdict.verdict, verdict.notes["step_p95"][:5]) == (expected, "NO-GO")


def test_what_was_copied_is_told_by_tensor() -> None:
    notes = judged(measured.measured()).notes
    assert notes["copies a"] == (
        "21.3 bytes per committed token (3): sampled_token_ids 21.3 (2 rows)"
    )
    assert "sampling_mask.token_ids 32.0 (8 rows)" in notes["copies b"]


# --- void -----------------------------------------------------------------------------------------


def test_pairs_whose_arms_did_different_work_are_void() -> None:
    verdict = judged(measured.measured(late=fewer_tokens, late_pairs=(2,)))
    assert verdict.verdict == "unknown"
    assert verdict.measured["pairs"] == 9
    assert "the arms did different work" in verdict.notes["void pair 2"]
    assert "pairs: 9 measured, at least 10 required" in verdict.reason


def fewer_tokens(run: RunHistory) -> RunHistory:
    assert run.outputs is not None
    outputs = replace(run.outputs, records=run.outputs.records[:-1])
    return replace(run, outputs=outputs)


def test_foreign_load_beyond_the_plans_voids_a_pair() -> None:
    case = measured.measured(comparison(max_foreign_load=0.05))
    verdict = judged(case)
    assert verdict.measured["pairs"] == 0
    assert "0.10 cores of foreign load, at most 0.05 allowed" in verdict.notes["void pair 0"]


def test_a_throttled_gpu_voids_a_pair() -> None:
    reading = evidence.GpuReading(
        uuid="GPU-1",
        at_ns=5,
        sm_clock_mhz=1000,
        memory_clock_mhz=None,
        temperature_c=90,
        power_mw=None,
        throttle=["gpu_idle", "hw_thermal_slowdown"],
        processes=2,
    )
    other = msgspec.structs.replace(reading, throttle=["gpu_idle"], processes=3)
    verdict = judged(measured.measured(readings={4: (reading, other)}))
    assert verdict.measured["void pairs"] == 1
    text = verdict.notes["void pair 4"]
    assert "GPU-1 was throttled: hw_thermal_slowdown" in text
    assert "processes on GPU-1 came or went: [2, 3]" in text
    assert "gpu_idle" not in text


@pytest.mark.parametrize("planted", [{}, {"slow-10": [0, 1]}])
def test_faults_are_those_of_the_plan(planted: dict[str, list[int]]) -> None:
    verdict = judged(measured.measured(comparison(planted=planted)))
    assert verdict.verdict == "pass"
    unplanned = measured.measured().edited("p001.b", with_fault)
    assert "expected planted faults [], found ['slow-10']" in judged(unplanned).notes["void pair 1"]


def with_fault(run: RunHistory) -> RunHistory:
    assert run.run is not None
    return replace(run, run=msgspec.structs.replace(run.run, faults=["slow-10"]))


def with_recorder(run: RunHistory) -> RunHistory:
    assert run.run is not None
    return replace(run, run=msgspec.structs.replace(run.run, recorders=["verification"]))


def test_a_timed_run_has_no_recorder() -> None:
    verdict = judged(measured.measured().edited("p001.b", with_recorder))
    assert "expected no recorder in a timed run" in verdict.notes["void pair 1"]


def test_arms_differ_in_nothing_but_what_they_may() -> None:
    allowed = comparison(only_differs=["argument:return_sampling_mask", "config:model.*mask"])
    assert judged(measured.measured(allowed)).verdict == "pass"
    verdict = judged(measured.measured(comparison(only_differs=["tree"])))
    assert verdict.verdict == "unknown"
    assert "expected the arms to differ in tree alone, found argument:return_sampling_mask" in (
        verdict.reason
    )


def test_an_a_a_has_two_engines_that_differ_in_nothing() -> None:
    same = comparison(identical=True)
    assert judged(measured.measured(same, replays=(True, True))).verdict == "pass"
    verdict = judged(measured.measured(same))
    assert "expected identical arms, found that argument:return_sampling_mask" in verdict.reason


def test_arms_that_do_not_differ_prove_nothing_about_a_change() -> None:
    verdict = judged(measured.measured(replays=(False, False)))
    assert "expected arms that differ, found none" in verdict.reason


# --- tampered with --------------------------------------------------------------------------------


def test_an_edited_time_is_refused() -> None:
    verdict = judged(measured.measured().edited("p003.a", measured.longer_step))
    assert verdict.failures == {"cost.record": 1}
    assert "the steps' times were changed" in verdict.reason
    assert "throughput" not in verdict.notes


def test_an_edit_that_mends_its_own_sample_breaks_the_next_one() -> None:
    case = measured.measured()

    def forge(run: RunHistory) -> RunHistory:
        edited = measured.longer_step(run)
        return measured.resampled(case.claim, edited)

    verdict = judged(case.edited("p003.a", forge))
    assert verdict.failures == {"cost.record": 1}
    assert "the sample before it was changed" in verdict.reason


def test_a_pair_taken_out_leaves_it_open() -> None:
    case = measured.measured(slowness=measured.steady(loss=0.1))
    kept = {role: run for role, run in case.runs.items() if not role.startswith("p004")}
    verdict = judge_claim(case.claim, {run.id: run for run in kept.values()})
    assert verdict.verdict == "unknown"
    assert "p004.a was never measured, or its run was taken out" in verdict.reason


def test_a_pair_taken_out_of_the_plan_too_is_refused() -> None:
    case = measured.measured()
    design = case.claim.comparison
    assert design is not None
    shorter = msgspec.structs.replace(design, order=draw_order(8, design.seed))
    runs = {r: n for r, n in case.claim.runs.items() if r[:4] not in ("p008", "p009")}
    claim = msgspec.structs.replace(case.claim, comparison=shorter, runs=runs, minima={"pairs": 8})
    verdict = judged(case, claim)
    assert verdict.verdict == "fail"
    assert "the plan was changed after this run" in verdict.reason


def test_swapped_arms_are_refused() -> None:
    case = measured.measured(slowness=measured.steady(loss=0.1))
    runs = {role[:-1] + ("b" if role[-1] == "a" else "a"): n for role, n in case.claim.runs.items()}
    verdict = judged(case, msgspec.structs.replace(case.claim, runs=runs))
    assert verdict.verdict == "fail"
    assert set(verdict.failures) == {"cost.record"}


def test_swapped_engines_are_refused() -> None:
    case = measured.measured(slowness=measured.steady(loss=0.1))
    engines = {"a": case.runs["p000.b"].engine, "b": case.runs["p000.a"].engine}
    runs = {r: replace(run, engine=engines[r[-1]]) for r, run in case.runs.items()}
    verdict = judged(replace(case, runs=runs))
    assert "the run is another engine's" in verdict.reason


Change = Callable[[evidence.Comparison], evidence.Comparison]


@pytest.mark.parametrize(
    "changes",
    [
        {"margin": 0.2},
        {"gates": ["step_p50"]},
        {"confidence": 0.999},
        {"equivalence": True},
        {"max_foreign_load": 9.0},
    ],
)
def test_a_plan_changed_afterwards_is_refused(changes: dict[str, object]) -> None:
    case = measured.measured(slowness=measured.steady(loss=0.1))
    assert case.claim.comparison is not None
    changed = msgspec.structs.replace(case.claim.comparison, **changes)
    verdict = judged(case, msgspec.structs.replace(case.claim, comparison=changed))
    assert verdict.verdict == "fail"
    assert "the plan was changed after this run" in verdict.reason
    assert "cost.regression" not in verdict.failures


def test_an_order_that_was_not_drawn_is_told() -> None:
    order = draw_order(10, 0)
    swapped = [*order[2:], *order[:2]]
    assert swapped != order
    verdict = judged(measured.measured(comparison(order=swapped)))
    assert "expected the order that seed 0 draws" in verdict.reason


def test_a_size_that_does_not_follow_from_its_shape_is_refused() -> None:
    def lie(run: RunHistory) -> RunHistory:
        record = evidence.HostCopies(
            step=0, tensors=[measured.tensor("counts", "int32", [8], 31)], committed=3
        )
        return replace(run, ranks={0: replace(run.ranks[0], records=(record,))})

    verdict = judged(measured.measured().edited("copies.b", lie))
    assert "expected 32 bytes of counts [8] int32, found 31" in verdict.reason


def test_a_run_without_a_sample_leaves_it_open() -> None:
    verdict = judged(measured.measured().edited("p001.a", lambda run: replace(run, sample=None)))
    assert "has no sample.json: nothing ties it to the plan" in verdict.reason


def test_a_claim_without_a_comparison_is_open() -> None:
    case = measured.measured()
    verdict = judged(case, msgspec.structs.replace(case.claim, comparison=None))
    assert verdict.verdict == "unknown"
    assert "nothing says how to judge it" in verdict.reason
