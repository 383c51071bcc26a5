"""From judgements to verdicts: what passes, what fails, and what nobody can know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from tests.fakes import histories
from tests.tprig.checkers import edits
from tests.tprig.checkers.examples import OFF, ON
from tprig.checkers import CHECKERS, verdict
from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.verdict import FINDINGS_KEPT, exit_code, judge, judge_claim, worst
from tprig.evidence import Claim, Finding, KnownIssue, Location, Verdict, VerdictName
from tprig.history import RunHistory

MASKS = histories.claim("masks", {"on": "on"})
RUNS: Mapping[str, RunHistory] = {"off": OFF, "on": ON}
BROKEN = edits.edit_support(ON, "a", 0, [5, 7])
"""A run with one `mask.membership`."""

ISSUE = KnownIssue(
    anomaly="mask.membership",
    claim="masks/*",
    versions=">=0.32,<0.34",
    reason="synthetic verification samples outside the support",
    link="https://example.org/1",
)


def in_versions(specifiers: str, version: str) -> bool:
    """Enough of PEP 440 for these tests: the one set they use."""
    assert specifiers == ">=0.32,<0.34"
    return version.startswith(("0.32.", "0.33."))


def judged(run: RunHistory, *issues: KnownIssue, claim: Claim = MASKS) -> Verdict:
    return judge_claim(claim, {"off": OFF, "on": run}, issues, in_versions)


def finding(anomaly: str) -> Finding:
    where = Location(file="runs/on/outputs.jsonl")
    return Finding(anomaly=anomaly, message=f"expected no {anomaly}, found one", where=where)


@pytest.fixture
def checker(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Judgement], None]:
    """Installs a checker of a name that gives a fixed judgement."""
    table = dict(CHECKERS)
    monkeypatch.setattr(verdict, "CHECKERS", table)

    def install(name: str, judgement: Judgement) -> None:
        def function(claim: Claim, runs: Runs) -> Judgement:
            return replace(judgement)

        table[name] = Checker(name=name, roles=(), needs=(), seams=(), function=function)

    return install


# --- pass and fail --------------------------------------------------------------------------------


def test_a_whole_plan_passes() -> None:
    off, on = histories.pair(4, tp=2)
    verdicts = judge(histories.plan(histories.claims(tp=2)), {"off": off, "on": on})
    assert [v.verdict for v in verdicts] == ["pass"] * 4
    assert worst(verdicts) == "pass"
    assert all(v.measured for v in verdicts)


def test_a_failure_carries_counts_counter_example_and_reason() -> None:
    found = judged(edits.edit_support(BROKEN, "a", 2, [4, 9]))
    assert found.verdict == "fail"
    assert list(found.failures.items()) == [("mask.membership", 1), ("mask.support-alignment", 1)]
    assert found.findings[0].anomaly == "mask.membership"
    assert found.reason.startswith("mask.membership (request a, row 0): expected ")
    assert found.reason.endswith("; 1 more finding")


def test_findings_are_kept_in_the_order_of_blame_and_counted_in_full(
    checker: Callable[[str, Judgement], None],
) -> None:
    many = [finding("output.ranks")] * FINDINGS_KEPT + [finding("mask.absent")] * 3
    checker("many", Judgement({"rows": 1}, many))
    found = judge_claim(histories.claim("many", {"on": "on"}), RUNS)
    assert found.failures == {"mask.absent": 3, "output.ranks": FINDINGS_KEPT}
    assert [f.anomaly for f in found.findings[:4]] == ["mask.absent"] * 3 + ["output.ranks"]
    assert len(found.findings) == FINDINGS_KEPT


# --- unknown --------------------------------------------------------------------------------------


def _without(**changes: object) -> RunHistory:
    return replace(ON, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("checker_name", "run", "told"),
    [
        ("masks", _without(outputs=None), "outputs of run on were never recorded"),
        ("masks", _without(outputs=edits.truncated(ON.outputs, 2)), "outputs.jsonl was cut short"),
        ("masks", _without(outputs=edits.dropping(ON.outputs, 0)), "outputs.jsonl lacks 1 record"),
        ("masks", _without(workload=None), "requests.json of run on is not there"),
        ("masks", _without(run=None), "run on has no run.json"),
        ("masks", edits.incomplete(ON), "run on is not complete"),
        ("outputs", edits.incomplete(ON), "run on is not complete"),
        ("acceptance", _without(steps=None), "steps of run on were never recorded"),
        ("acceptance", _without(steps=edits.truncated(ON.steps, 2)), "steps.jsonl was cut short"),
        ("acceptance", _without(ranks={}), "expected 1 rank streams, found 0"),
        (
            "acceptance",
            edits.with_rank(ON, 0, edits.truncated(ON.ranks[0], 2)),
            "rank0.jsonl was cut short",
        ),
        ("engine", _without(engine=None), "events of the engine of run on were never recorded"),
    ],
)
def test_missing_evidence_is_named(checker_name: str, run: RunHistory, told: str) -> None:
    roles = {"on": "on"} if checker_name in {"masks", "engine"} else {"off": "off", "on": "on"}
    found = judged(run, claim=histories.claim(checker_name, roles, minima={}))
    assert found.verdict == "unknown"
    assert told in found.reason
    assert found.failures == {}


@pytest.mark.parametrize("what", ["arm", "effective"])
def test_parity_needs_to_know_its_engines(what: str) -> None:
    assert ON.engine is not None
    run = replace(ON, engine=replace(ON.engine, **{what: None}))  # type: ignore[arg-type]
    claim = histories.claim("parity", {"tp1": "off", "tp2": "on"})
    found = judged(run, claim=claim)
    assert found.verdict == "unknown"
    assert "of the engine of run on is not there" in found.reason


def test_fewer_rank_streams_than_the_run_had_are_missing() -> None:
    _, on = histories.pair(1, tp=2)
    found = judge_claim(
        histories.claim("acceptance", {"on": "on"}, tp=2),
        {"on": replace(on, ranks={0: on.ranks[0]})},
    )
    assert found.verdict == "unknown"
    assert "expected 2 rank streams, found 1" in found.reason


def test_a_certain_finding_fails_whatever_is_missing() -> None:
    found = judged(replace(BROKEN, outputs=edits.truncated(BROKEN.outputs, 1)))
    assert found.verdict == "fail"
    assert list(found.failures) == ["mask.membership"]
    assert "was cut short" in found.notes["missing"]


def test_a_run_that_was_never_recorded() -> None:
    found = judge_claim(histories.claim("outputs", {"off": "off", "on": "gone"}), RUNS)
    assert found.verdict == "unknown"
    assert "run gone (on) was never recorded" in found.reason


@pytest.mark.parametrize("runs", [{}, {"off": "off"}])
def test_a_claim_that_does_not_cast_its_role(runs: dict[str, str]) -> None:
    found = judge_claim(histories.claim("masks", runs), RUNS)
    assert found.verdict == "unknown"
    assert "the claim casts no run as on" in found.reason


def test_less_than_the_minima_is_unknown() -> None:
    claim = histories.claim("masks", {"on": "on"}, minima={"rows": 5, "bonus": 1})
    found = judged(ON, claim=claim)
    assert found.verdict == "unknown"
    assert found.reason == (
        "rows: 4 measured, at least 5 required; bonus: 0 measured, at least 1 required"
    )


@pytest.mark.parametrize("measured", [{}, {"rows": 0}, {"rows": 0, "engines": 1}])
def test_nothing_judged_is_unknown_whatever_the_minima(
    checker: Callable[[str, Judgement], None], measured: dict[str, int]
) -> None:
    checker("empty", Judgement(measured))
    found = judge_claim(histories.claim("empty", {"on": "on"}, minima={}), RUNS)
    assert (found.verdict, found.reason) == ("unknown", "nothing was judged")


def test_a_checker_that_raises_is_unknown_with_its_traceback() -> None:
    finite = edits.row_at(ON, "a", 0).finite
    assert finite is not None
    uneven = msgspec.structs.replace(finite, logprobs=finite.logprobs[:1])
    found = judged(edits.edit_row(ON, "a", 0, finite=uneven))
    assert found.verdict == "unknown"
    assert found.reason.startswith("the checker raised ValueError: ")
    assert found.notes["traceback"].startswith("Traceback (most recent call last)")
    assert "masks.py" in found.notes["traceback"]


def test_a_checker_that_nobody_knows() -> None:
    found = judged(ON, claim=histories.claim("telepathy", {"on": "on"}))
    assert found.verdict == "unknown"
    assert "found 'telepathy'" in found.reason


def test_a_moved_seam_leaves_only_what_rests_on_it_unknown() -> None:
    moved = edits.with_seam(ON, histories.seam("model_runner.sample", ok=False))
    wrong = edits.edit_call(moved, 0, 1, 0, rejected=3)
    found = judged(wrong, claim=histories.claim("acceptance", {"off": "off", "on": "on"}))
    assert found.verdict == "unknown"
    assert "seam model_runner.sample" in found.reason
    assert "expected (self, scheduler_output, ...), found (self, output)" in found.reason
    assert judged(wrong).verdict == "pass"


def test_a_recorder_that_could_not_be_installed_on_a_rank() -> None:
    seam = structs.replace(histories.seam("verification", ok=False), target="")
    run = edits.with_rank(ON, 0, replace(ON.ranks[0], records=(seam,)))
    found = judged(run, claim=histories.claim("acceptance", {"on": "on"}))
    assert found.verdict == "unknown"
    assert found.reason.startswith("recorder verification: expected (self, scheduler_output, ...)")


def test_a_seam_that_nothing_rests_on_may_move() -> None:
    moved = edits.with_seam(ON, histories.seam("async_output.get_output", ok=False))
    claim = histories.claim("acceptance", {"off": "off", "on": "on"})
    assert judged(moved, claim=claim).verdict == "pass"


# --- not applicable -------------------------------------------------------------------------------


def test_what_does_not_apply_is_said_and_does_not_count() -> None:
    claim = histories.claim("masks", {}, requirement="not-applicable", reason="no CUDA here")
    found = judged(BROKEN, claim=claim)
    assert (found.verdict, found.reason) == ("not-applicable", "no CUDA here")
    assert worst([found]) == "unknown"
    assert worst([found, judged(ON)]) == "pass"


# --- known issues ---------------------------------------------------------------------------------


def test_a_known_issue_that_shows_is_expected() -> None:
    found = judged(BROKEN, ISSUE)
    assert found.verdict == "expected"
    assert "synthetic verification samples outside the support" in found.reason
    assert found.failures == {"mask.membership": 1}


def test_a_known_issue_is_strict() -> None:
    found = judged(ON, ISSUE)
    assert found.verdict == "fail"
    assert "expected mask.membership, a known issue of vLLM >=0.32,<0.34" in found.reason
    assert "no longer shows" in found.reason


def test_another_anomaly_beside_a_known_issue_fails() -> None:
    found = judged(edits.edit_support(BROKEN, "a", 2, [4, 9]), ISSUE)
    assert found.verdict == "fail"
    assert found.reason.startswith("mask.support-alignment")


def test_one_of_two_known_issues_does_not_show() -> None:
    other = msgspec.structs.replace(ISSUE, anomaly="mask.width")
    found = judged(BROKEN, ISSUE, other)
    assert found.verdict == "fail"
    assert "expected mask.width" in found.reason


@pytest.mark.parametrize(
    "change", [{"claim": "outputs/*"}, {"claim": "masks/tp2"}, {"version": "0.34.0"}]
)
def test_a_known_issue_of_other_claims_or_versions_excuses_nothing(change: dict[str, str]) -> None:
    run, issue = BROKEN, ISSUE
    if "claim" in change:
        issue = msgspec.structs.replace(ISSUE, claim=change["claim"])
    else:
        run = edits.edit_effective(BROKEN, vllm_version=change["version"])
    assert judged(run, issue).verdict == "fail"


def test_a_known_issue_does_not_excuse_missing_evidence() -> None:
    assert judged(edits.incomplete(BROKEN), ISSUE).verdict == "unknown"
    assert judged(edits.incomplete(ON), ISSUE).verdict == "unknown"


def test_a_known_issue_needs_a_version_and_a_way_to_match_it() -> None:
    assert ON.engine is not None
    nameless = replace(ON, engine=replace(ON.engine, effective=None))
    found = judged(nameless, ISSUE)
    assert found.verdict == "unknown"
    assert "no vLLM version of its runs" in found.reason
    found = judge_claim(MASKS, RUNS, [ISSUE])
    assert found.verdict == "unknown"
    assert "no way to match versions" in found.reason


# --- withdrawn ------------------------------------------------------------------------------------


def _with_withdrawn(
    checker: Callable[[str, Judgement], None], oracle: Judgement, masks: Judgement, size: int = 2
) -> list[VerdictName]:
    checker("aa", Judgement({"rows": 1}, withdrawn="A/A differs at layer 1"))
    checker("oracle", oracle)
    checker("masks", masks)
    claims = [
        histories.claim("aa", {"on": "on2"}, tp=2),
        histories.claim("oracle", {"on": f"on{size}"}, tp=size),
        histories.claim("masks", {"on": f"on{size}"}, tp=size),
    ]
    runs = {"on1": ON, "on2": histories.pair(3, tp=2)[1]}
    verdicts = judge(histories.plan(claims), runs)
    return [v.verdict for v in verdicts]


SOUND, FAILING = Judgement({"rows": 1}), Judgement({"rows": 1}, [finding("mask.width")])


def test_a_withdrawn_claim_is_covered_by_oracle_and_masks(
    checker: Callable[[str, Judgement], None],
) -> None:
    names = _with_withdrawn(checker, SOUND, SOUND)
    assert names == ["withdrawn", "pass", "pass"]


@pytest.mark.parametrize(
    ("oracle", "masks", "size"),
    [(FAILING, SOUND, 2), (SOUND, FAILING, 2), (Judgement(), SOUND, 2), (SOUND, SOUND, 1)],
    ids=["oracle fails", "masks fail", "oracle unknown", "another TP size"],
)
def test_a_withdrawn_claim_without_cover_is_unknown(
    checker: Callable[[str, Judgement], None], oracle: Judgement, masks: Judgement, size: int
) -> None:
    assert _with_withdrawn(checker, oracle, masks, size)[0] == "unknown"


def test_a_withdrawn_claim_alone_is_unknown_and_says_why(
    checker: Callable[[str, Judgement], None],
) -> None:
    checker("aa", Judgement({"rows": 1}, withdrawn="A/A differs at layer 1"))
    (found,) = judge(histories.plan([histories.claim("aa", {"on": "on"})]), RUNS)
    assert found.verdict == "unknown"
    assert "withdrawn (A/A differs at layer 1)" in found.reason


# --- the worst ------------------------------------------------------------------------------------


def _named(*names: VerdictName) -> list[Verdict]:
    return [Verdict(claim="c", verdict=name, reason="", measured={}) for name in names]


@pytest.mark.parametrize(
    ("names", "expected", "code"),
    [
        (["pass", "fail", "unknown", "expected"], "fail", 1),
        (["pass", "unknown", "expected"], "unknown", 2),
        (["pass", "expected", "withdrawn"], "expected", 0),
        (["pass", "withdrawn", "not-applicable"], "pass", 0),
        (["withdrawn"], "unknown", 2),
        (["not-applicable"], "unknown", 2),
        ([], "unknown", 2),
    ],
)
def test_the_worst_verdict_wins(names: list[VerdictName], expected: str, code: int) -> None:
    found = worst(_named(*names))
    assert found == expected
    assert exit_code(found) == code


@pytest.mark.parametrize("name", ["withdrawn", "not-applicable"])
def test_what_does_not_count_is_never_success(name: VerdictName) -> None:
    assert exit_code(name) == 2


def test_a_plan_without_claims_is_unknown() -> None:
    assert worst(judge(histories.plan([]), RUNS)) == "unknown"


@pytest.mark.parametrize("name", ["outputs", "acceptance"])
def test_runs_that_were_asked_differently_are_not_compared(name: str) -> None:
    assert OFF.workload is not None
    first, *others = OFF.workload.requests
    sampling = msgspec.structs.replace(first.sampling, temperature=first.sampling.temperature + 0.1)
    requests = [msgspec.structs.replace(first, sampling=sampling), *others]
    asked = replace(OFF, workload=msgspec.structs.replace(OFF.workload, requests=requests))
    claim = histories.claim(name, {"off": "off", "on": "on"})
    found = judge_claim(claim, {"off": asked, "on": ON}, (), in_versions)
    assert found.verdict == "unknown"
    assert "their requests differ" in found.reason
