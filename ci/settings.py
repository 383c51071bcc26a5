"""What a CI service tells a job by its environment variables; nothing else here reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ci.errors import CiError

Service = Literal["buildkite", "github", "none"]


@dataclass(frozen=True)
class Build:
    """The job that runs this.

    Attributes:
        service: whose job; `none` on a person's machine.
        build: of the whole build, for what links to it.
        job: of this attempt, unique.
        attempt: 0 at first; a retry counts up.
        commit: under test, where told.
        branch: the same.
        deadline_s: of the inner watchdog; None where the step has none.
        summary_file: where GitHub reads a step's summary from.
    """

    service: Service
    build: str
    job: str
    attempt: int
    commit: str | None
    branch: str | None
    deadline_s: float | None
    summary_file: Path | None


def read(variables: Mapping[str, str]) -> Build:
    """Read them.

    Raises:
        CiError: a number is none.
    """
    deadline_min = _number(variables, "TPRIG_CI_DEADLINE_MIN")
    deadline_s = None if deadline_min is None else deadline_min * 60
    if variables.get("BUILDKITE") == "true":
        return Build(
            service="buildkite",
            build=variables.get("BUILDKITE_BUILD_ID", "unknown"),
            job=variables.get("BUILDKITE_JOB_ID", "unknown"),
            attempt=int(_number(variables, "BUILDKITE_RETRY_COUNT") or 0),
            commit=variables.get("BUILDKITE_COMMIT"),
            branch=variables.get("BUILDKITE_BRANCH"),
            deadline_s=deadline_s,
            summary_file=None,
        )
    if variables.get("GITHUB_ACTIONS") == "true":
        summary = variables.get("GITHUB_STEP_SUMMARY")
        return Build(
            service="github",
            build=variables.get("GITHUB_RUN_ID", "unknown"),
            job=variables.get("GITHUB_JOB", "unknown"),
            # GitHub counts from 1.
            attempt=max(0, int(_number(variables, "GITHUB_RUN_ATTEMPT") or 1) - 1),
            commit=variables.get("GITHUB_SHA"),
            branch=variables.get("GITHUB_REF_NAME"),
            deadline_s=deadline_s,
            summary_file=None if summary is None else Path(summary),
        )
    return Build("none", "local", "local", 0, None, None, deadline_s, None)


def _number(variables: Mapping[str, str], name: str) -> float | None:
    text = variables.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise CiError(
            expected=f"a number of at least 0 in {name}",
            found=repr(text),
            rule="a deadline or an attempt that cannot be read is not guessed",
            remedy=f"unset {name}, or mend what sets it",
        )
    return value
