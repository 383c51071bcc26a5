"""Runs tests on base and head in turn, on the same devices, for attribution."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gpu_scheduler
from ci import events
from ci.attribution import Observation, Side, pairs_order
from ci.errors import CiError
from ci.observed import observe
from ci.recording import OPTION
from ci.step import Attempt, supervised
from gpu_scheduler.visibility import environment_for

LEASE_WAIT_S = 3600.0


@dataclass(frozen=True)
class Reruns:
    """What to run.

    Attributes:
        root: the checkout whose tests are run.
        tests: node ids.
        sides: more arguments of pytest for each side, such as `--tprig-vllm-tree=PATH@REV`.
        arguments: more for both.
        pairs: how often each side runs.
        deadline_s: of one run; None for none.
        output: each run gets a folder below it.
    """

    root: Path
    tests: Sequence[str]
    sides: Mapping[Side, Sequence[str]]
    arguments: Sequence[str]
    pairs: int
    deadline_s: float | None
    output: Path


def rerun(reruns: Reruns, gpus: int) -> list[Observation]:
    """Run them all, interleaved, and return what each test did.

    Args:
        reruns: what to run.
        gpus: how many devices it takes; 0 where it runs on none. The same ones serve every run.

    Raises:
        CiError: no tests, no devices, or a folder that is in use.
    """
    if not reruns.tests:
        raise CiError(
            expected="at least one test that failed",
            found="none",
            rule="what did not fail needs no attribution",
            remedy="name tests, or folders of runs in which some failed",
        )
    variables = {**os.environ, **_devices(gpus)}
    found: list[Observation] = []
    for number, side in enumerate(pairs_order(reruns.pairs)):
        folder = _one(reruns, number, side, variables)
        found += _complete(side, observe(side, folder), reruns.tests)
    return found


def _complete(side: Side, found: Sequence[Observation], tests: Sequence[str]) -> list[Observation]:
    """A test that a run did not even collect was not tried by it; others do not count."""
    by_test = {each.test: each for each in found}
    return [by_test.get(test, Observation(side, test, tried=False)) for test in tests]


def _devices(gpus: int) -> dict[str, str]:
    """Choose devices by leasing them once; each run then leases these, and can get no others."""
    if gpus == 0:
        return {}
    try:
        with gpu_scheduler.lease(
            gpus, kind="cuda", test="attribution", wait_s=LEASE_WAIT_S
        ) as held:
            return environment_for(held.devices)
    except gpu_scheduler.GpuSchedulerError as error:
        raise CiError(
            expected=f"{gpus} GPUs for the runs of base and head",
            found=str(error),
            rule="both sides run on the same devices",
            remedy="see `tprig gpus`, or run with --platform cpu",
        ) from None


def _one(reruns: Reruns, number: int, side: Side, variables: Mapping[str, str]) -> Path:
    attempt = Attempt(reruns.output.absolute() / f"{number:03d}-{side}")
    try:
        attempt.folder.mkdir(parents=True)
    except FileExistsError:
        raise CiError(
            expected=f"no run at {attempt.folder}",
            found="one",
            rule="no run is written over",
            remedy="name another --output, or have it read with --base and --head",
        ) from None
    events.append(attempt.events, events.Begun(step=f"rerun-{side}", attempt=number, job="rerun"))
    tests = attempt.folder / "tests.txt"
    tests.write_text("".join(f"{test}\n" for test in reruns.tests), encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-p", "ci.recording", f"{OPTION}={attempt.events}"]
    # Where no suite of the rig is, its options are unknown; the caller adds them.
    own = [word.replace("{bundle}", str(attempt.bundle)) for word in reruns.sides[side]]
    words += [*own, *reruns.arguments, f"@{tests}"]
    ended = supervised(words, reruns.root, reruns.deadline_s, variables)
    events.append(attempt.events, ended)
    return attempt.folder


def rig_arguments(tree: Path, revision: str | None, platform: str) -> list[str]:
    """Arguments of a side that runs suites on a vLLM tree, at a revision or as it lies there."""
    named = str(tree) if revision is None else f"{tree}@{revision}"
    return [
        f"--tprig-vllm-tree={named}",
        f"--tprig-platform={platform}",
        "--tprig-bundle-dir={bundle}",
    ]
