"""The one place that calls `buildkite-agent` or writes a GitHub step summary."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ci.errors import CiError
from ci.settings import Build

AGENT_DEADLINE_S = 600.0

AnnotationStyle = Literal["success", "error", "warning", "info"]


class Publisher:
    """Hands results to the service that runs this job; on a person's machine, to nobody."""

    def __init__(self, build: Build) -> None:
        self.build = build

    @property
    def buildkite(self) -> bool:
        """True within a job of Buildkite."""
        return self.build.service == "buildkite"

    def pipeline(self, yaml: str) -> None:
        """Upload a pipeline to the running build."""
        self._agent(["pipeline", "upload"], yaml)

    def upload(self, pattern: str, folder: Path) -> None:
        """Upload artifacts; elsewhere files stay where they are.

        Args:
            pattern: a glob, from `folder`.
            folder: the job's checkout.
        """
        if self.buildkite:
            self._agent(["artifact", "upload", pattern], folder=folder)

    def download(self, pattern: str, folder: Path) -> None:
        """Fetch artifacts of every job of the build, retried ones among them.

        Args:
            pattern: a glob over artifacts' paths.
            folder: they are put below it, by their paths.
        """
        if self.buildkite:
            self._agent(
                ["artifact", "download", "--include-retried-jobs", pattern, "."], folder=folder
            )

    def annotate(self, markdown: str, style: AnnotationStyle) -> None:
        """Show Markdown on the build's page, or in GitHub's step summary."""
        from tprig.report.text import cut  # noqa: PLC0415 (steps that publish nothing are quick)

        text = cut(markdown)
        if self.buildkite:
            self._agent(["annotate", "--style", style, "--context", "tprig"], text)
        elif self.build.summary_file is not None:
            with self.build.summary_file.open("a", encoding="utf-8") as file:
                file.write(text)

    def _agent(
        self, arguments: Sequence[str], data: str | None = None, folder: Path | None = None
    ) -> None:
        try:
            done = subprocess.run(
                ["buildkite-agent", *arguments],  # noqa: S607 - wherever the agent put it
                input=data,
                text=True,
                capture_output=True,
                cwd=folder,
                check=False,
                timeout=AGENT_DEADLINE_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _refused(arguments, str(error)) from None
        sys.stderr.write(done.stderr)
        if done.returncode:
            raise _refused(arguments, done.stderr.strip()[-500:] or f"exit {done.returncode}")


def _refused(arguments: Sequence[str], found: str) -> CiError:
    return CiError(
        expected=f"buildkite-agent {' '.join(arguments[:2])} to work",
        found=found,
        rule="what is not handed over is not there for the next step",
        remedy="see the agent's log; the files are still in this job's checkout",
    )
