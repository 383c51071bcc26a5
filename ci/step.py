"""Runs one planned step: pytest under a watchdog that fires before the service's time-out."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci import codes, events
from ci.errors import CiError
from ci.plan import BuildPlan, PlannedStep
from ci.publish import Publisher
from ci.recording import OPTION
from ci.settings import Build

INTERRUPT_S, TERMINATE_S = 60.0, 20.0
"""After SIGINT pytest seals its bundle; then SIGTERM, and SIGKILL."""
CANCEL_S = 6.0
"""Buildkite gives a cancelled job 10 s, of which the evidence needs some."""


class CancelledError(Exception):
    """The service asks the job to end."""


@dataclass(frozen=True)
class Attempt:
    """Where one attempt at a step keeps what it records."""

    folder: Path

    @property
    def events(self) -> Path:
        """Its stream."""
        return self.folder / events.EVENTS_FILE

    @property
    def bundle(self) -> Path:
        """The evidence of its engines."""
        return self.folder / "bundle"


def find(plan: BuildPlan, key: str) -> PlannedStep:
    """The step of that key.

    Raises:
        CiError: there is none.
    """
    for step in plan.steps:
        if step.key == key:
            return step
    raise CiError(
        expected=f"a step among {', '.join(step.key for step in plan.steps)}",
        found=key,
        rule="a step runs what was planned for it",
        remedy="name one of these with --step",
    )


def run(step: PlannedStep, root: Path, output: Path, publisher: Publisher) -> int:
    """Run the step's tests and return the job's exit code.

    Args:
        step: as planned.
        root: the checkout.
        output: below it each step has a folder, and each attempt one in that.
        publisher: of this job.

    Raises:
        CiError: this very attempt has run here before.
    """
    attempt = _begin(step, output, publisher.build)
    tests = attempt.folder / "tests.txt"
    tests.write_text("".join(f"{test}\n" for test in step.tests), encoding="utf-8")
    ended = supervised(command(step, attempt, tests), root, publisher.build.deadline_s, os.environ)
    events.append(attempt.events, ended)
    if ended.cancelled:
        publisher.upload(f"{attempt.folder.relative_to(root)}/**/*", root)
    return codes.TIMED_OUT if ended.timed_out else codes.of_step(ended.status)


def _begin(step: PlannedStep, output: Path, build: Build) -> Attempt:
    folder = output.absolute() / step.key / f"{build.attempt}-{build.job}"
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise CiError(
            expected=f"no attempt at {folder}",
            found="one",
            rule="every attempt is kept, and none is written over",
            remedy="move it away, or name another --output",
        ) from None
    attempt = Attempt(folder)
    begun = events.Begun(step=step.key, attempt=build.attempt, job=build.job)
    events.append(attempt.events, begun)
    return attempt


def command(step: PlannedStep, attempt: Attempt, tests: Path) -> list[str]:
    """The pytest that runs the step."""
    engines = [f"--tprig-platform={step.platform}", f"--tprig-bundle-dir={attempt.bundle}"]
    return [
        *(sys.executable, "-m", "pytest", "-p", "ci.recording", f"{OPTION}={attempt.events}"),
        *(engines if step.engines else []),
        *(["-m", step.markers] if step.markers else []),
        *step.arguments,
        f"@{tests}",
    ]


def supervised(
    words: Sequence[str], root: Path, deadline_s: float | None, variables: Mapping[str, str]
) -> events.Ended:
    """Run a pytest in a session of its own, and end it and all that it started.

    Args:
        words: the command, which loads `ci.recording`.
        root: where it runs.
        deadline_s: when it is interrupted; None never does.
        variables: its environment.
    """
    own = {**variables, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(words, cwd=root, env=own, start_new_session=True)
    try:
        with _cancellable():
            return events.Ended(status=process.wait(deadline_s))
    except subprocess.TimeoutExpired:
        status = _end(process, INTERRUPT_S, TERMINATE_S)
        return events.Ended(status=status, timed_out=True)
    except CancelledError:
        return events.Ended(status=_end(process, CANCEL_S, 0.5), cancelled=True)
    finally:
        # Whatever it started belongs to its session, and ends with the step.
        _signal(process, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes], interrupt_s: float, terminate_s: float) -> int:
    for number, patience_s in ((signal.SIGINT, interrupt_s), (signal.SIGTERM, terminate_s)):
        _signal(process, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(patience_s)
    _signal(process, signal.SIGKILL)
    return process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    # The group's id is the leader's, and is not given away while any member lives.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _cancellable() -> Iterator[None]:
    """Turn the service's SIGTERM into an exception while pytest is waited for."""

    def cancel(_number: int, _frame: object) -> None:
        raise CancelledError

    before = signal.signal(signal.SIGTERM, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
