from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.fakes import bundles, histories
from tprig import evidence
from tprig.bundle import Bundle, Problem, load
from tprig.judged import judge_again, overall, plan_digest, unpassed, verdicts_of, version_match


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load(bundles.pair(tmp_path_factory.mktemp("judged") / "bundle"))


def test_a_bundle_is_judged_as_it_was(bundle: Bundle) -> None:
    judged = judge_again(bundle)
    assert judged.verdicts == bundle.verdicts
    assert judged.overall == "pass"
    assert judged.changes == ()
    assert judged.exit_code == 0


def test_the_plans_digest_is_that_of_its_file(bundle: Bundle) -> None:
    assert bundle.plan is not None
    manifest = msgspec.json.decode(
        (bundle.root / "manifest.json").read_bytes(), type=evidence.Manifest
    )
    listed = {entry.path: entry.sha256 for entry in manifest.files}
    assert plan_digest(bundle.plan) == listed["plan.json"]


def test_a_damaged_bundle_is_not_judged(bundle: Bundle) -> None:
    damaged = replace(bundle, problems=(Problem("damaged", "plan.json", "was changed"),))
    judged = judge_again(damaged)
    assert (judged.verdicts, judged.overall, judged.exit_code) == (None, None, 3)


def test_what_lacks_of_a_run_is_for_its_claims_and_what_lacks_of_the_bundle_for_all(
    bundle: Bundle,
) -> None:
    found = verdicts_of(bundle)
    of_a_run = replace(bundle, problems=(Problem("missing", "runs/x/ranks/rank0.jsonl", "cut"),))
    of_all = replace(bundle, problems=(Problem("missing", "ledger.jsonl", "cut"),))
    assert overall(of_a_run, found) == "pass"
    assert overall(of_all, found) == "unknown"
    assert overall(replace(bundle, sealed=False), found) == "unknown"


def test_an_interrupted_run_that_fails_still_fails(bundle: Bundle) -> None:
    found = msgspec.structs.replace(verdicts_of(bundle), worst="fail")
    assert overall(replace(bundle, sealed=False), found) == "fail"


def test_without_a_plan_nothing_is_decided(bundle: Bundle) -> None:
    judged = judge_again(replace(bundle, plan=None, sealed=False, verdicts=None))
    assert judged.overall == "unknown"
    assert judged.exit_code == 2


def test_stored_verdicts_that_differ_are_listed(bundle: Bundle) -> None:
    stored = bundle.verdicts
    assert stored is not None
    first = msgspec.structs.replace(stored.verdicts[0], verdict="unknown", measured={})
    extra = msgspec.structs.replace(stored.verdicts[1], claim="extra")
    changed = msgspec.structs.replace(
        stored,
        plan_digest="0" * 64,
        worst="fail",
        verdicts=[first, stored.verdicts[1], *stored.verdicts[3:], extra],
    )
    judged = judge_again(replace(bundle, verdicts=changed))
    assert judged.exit_code == 0
    told = {
        change.claim: (change.stored, change.found.partition(",")[0]) for change in judged.changes
    }
    assert told == {
        "(the plan)": ("0" * 64, plan_digest(bundle.plan) if bundle.plan else ""),
        "masks/tp1": ("unknown", "pass"),
        "acceptance/tp1": ("no verdict", "pass"),
        "extra": ("pass, 15 rows", "no verdict"),
        "(all claims)": ("fail", "pass"),
    }


@pytest.mark.parametrize(
    ("specifiers", "version", "matches"),
    [
        (">=0.32,<0.34", "0.32.0", True),
        (">=0.32,<0.34", "0.33.1.dev7+gabc.cpu", True),
        (">=0.32,<0.34", "0.34.0", False),
        ("==0.32.0", "0.32.0+cpu", True),
        ("", "0.1", True),
    ],
)
def test_known_issues_apply_by_pep_440(specifiers: str, version: str, matches: bool) -> None:  # noqa: FBT001
    assert version_match(specifiers, version) is matches


def test_a_known_issue_that_no_longer_shows_fails_its_claim(tmp_path: Path) -> None:
    issue = evidence.KnownIssue(
        anomaly="mask.membership",
        claim="masks/*",
        versions=">=0.32",
        reason="known",
        link="https://example.org",
    )
    plan = histories.plan(histories.claims(), [issue])
    judged = judge_again(load(bundles.write(tmp_path / "bundle", histories.pair(1), plan)))
    assert judged.exit_code == 1


def test_a_known_issue_with_malformed_versions_leaves_its_claim_open(tmp_path: Path) -> None:
    issue = evidence.KnownIssue(
        anomaly="mask.membership", claim="masks/*", versions="~~1", reason="known", link="x"
    )
    plan = histories.plan(histories.claims(), [issue])
    judged = judge_again(load(bundles.write(tmp_path / "bundle", histories.pair(1), plan)))
    assert judged.exit_code == 2


@pytest.mark.parametrize("outcome", ["failed", "error", "interrupted", None])
def test_a_run_of_which_a_test_did_not_pass_can_not_pass(
    bundle: Bundle, outcome: str | None
) -> None:
    """Whatever became of its claims: the ledger says that something went wrong."""
    assert bundle.ledger is not None
    *rest, last = bundle.ledger.records
    ended = msgspec.structs.replace(last, outcome=outcome)
    changed = replace(bundle, ledger=replace(bundle.ledger, records=(*rest, ended)))
    assert unpassed(changed) == {last.test: outcome or "did not finish"}
    judged = judge_again(changed)
    assert (judged.overall, judged.exit_code) == ("unknown", 2)


def test_a_test_that_never_ran_is_told(bundle: Bundle) -> None:
    assert bundle.ledger is not None
    assert bundle.plan is not None
    none = replace(bundle, ledger=replace(bundle.ledger, records=()))
    assert unpassed(none) == dict.fromkeys(bundle.plan.tests, "did not finish")
