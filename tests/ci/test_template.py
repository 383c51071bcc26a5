"""The GitHub Actions template keeps what the Buildkite pipeline promises."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.ci.toy import REPOSITORY

TEMPLATE = REPOSITORY / "ci/templates/github-actions.yml"


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    document = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    found: dict[str, Any] = document["jobs"]
    return found


def uses(job: dict[str, Any], action: str) -> list[dict[str, Any]]:
    return [step for step in job["steps"] if step.get("uses", "").startswith(action)]


def test_every_job_has_a_timeout_and_none_may_fail_unnoticed(jobs: dict[str, Any]) -> None:
    assert all("timeout-minutes" in job for job in jobs.values())
    assert "continue-on-error" not in TEMPLATE.read_text(encoding="utf-8")
    assert jobs["step"]["strategy"]["fail-fast"] is False


def test_evidence_is_uploaded_however_a_step_ends_and_each_attempt_by_its_own_name(
    jobs: dict[str, Any],
) -> None:
    (upload,) = uses(jobs["step"], "actions/upload-artifact")
    assert upload["if"] == "always()"
    assert "github.run_attempt" in upload["with"]["name"]
    assert upload["with"]["include-hidden-files"] is True
    assert upload["with"]["if-no-files-found"] == "error"


def test_the_summary_runs_however_the_steps_end(jobs: dict[str, Any]) -> None:
    assert jobs["summary"]["if"] == "always()"
    assert set(jobs["summary"]["needs"]) == {"plan", "step"}
    assert jobs["summary"]["steps"][-1]["run"] == "python -m ci summary"


def test_the_watchdog_is_given_less_time_than_the_job(jobs: dict[str, Any]) -> None:
    plan = next(step["run"] for step in jobs["plan"]["steps"] if step.get("id") == "plan")
    assert '"minutes": s["timeout_min"]' in plan
    assert '"deadline": s["timeout_min"] - 10' in plan
    envs = [step["env"] for step in jobs["step"]["steps"] if "env" in step]
    assert envs == [{"TPRIG_CI_DEADLINE_MIN": "${{ matrix.step.deadline }}"}]
