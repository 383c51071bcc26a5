"""What a build is to run: decided once, before anything runs, and compared with at the end. Pure.

The step that uploads the pipeline writes it as an artifact; every other step reads that file,
so that no two steps can disagree about what was planned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ci.catalog import Suite
from ci.changes import Changes, triggers
from ci.collected import Collected
from ci.errors import CiError
from ci.shards import balanced, estimates, shard_count

VERSION = 1
_PATHS_SHOWN = 3


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step: a suite's tests of one GPU count, or a shard of them.

    Attributes:
        key: unique in the build.
        suite: its name in the catalogue.
        gpus: that the step has; no test of it needs more.
        shard: 1-based, of `shards`.
        markers: pytest's `-m`.
        may_skip: those of `tests` that may skip themselves here.
        engines: the step must bring a bundle.
        tests: node ids, longest first where they were divided.
        estimate_s: what they are expected to take together.
        why: what called for it.
    """

    key: str
    suite: str
    gpus: int
    shard: int
    shards: int
    timeout_min: int
    platform: str
    arguments: list[str]
    markers: str
    may_skip: list[str]
    engines: bool
    tests: list[str]
    estimate_s: float
    why: str


class BuildPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All steps that run tests.

    Attributes:
        steps: in the catalogue's order.
        left_out: suite -> why it is not run.
    """

    version: int
    steps: list[PlannedStep]
    left_out: dict[str, str]


def make(
    suites: Sequence[Suite],
    collected: Mapping[str, Sequence[Collected]],
    durations: Mapping[str, float],
    changes: Changes | None = None,
) -> BuildPlan:
    """Decide what runs where.

    Args:
        suites: the catalogue.
        collected: suite name -> its tests.
        durations: test -> seconds, of earlier runs.
        changes: None runs everything.

    Raises:
        CiError: a suite that is called for has no tests, or one that needs more GPUs than it has;
            or nothing is called for.
    """
    reasons = {suite.name: _why(suite, changes) for suite in suites}
    steps = [
        step
        for suite in suites
        if (why := reasons[suite.name]) is not None
        for step in _steps(suite, collected.get(suite.name, ()), durations, why)
    ]
    if not steps:
        raise CiError(
            expected="at least one suite that runs",
            found=f"none of {len(suites)} is called for",
            rule="a build that runs nothing decides nothing",
            remedy="leave out --changed-since, or let a suite run always",
        )
    left = {name: "no changed file calls for it" for name, why in reasons.items() if why is None}
    return BuildPlan(version=VERSION, steps=steps, left_out=left)


def _why(suite: Suite, changes: Changes | None) -> str | None:
    if changes is None:
        return "everything runs: no revision to compare with was named"
    if paths := triggers(suite, changes):
        more = f" and {len(paths) - _PATHS_SHOWN} more" if len(paths) > _PATHS_SHOWN else ""
        return f"changed: {', '.join(paths[:_PATHS_SHOWN])}{more}"
    return "runs whatever has changed" if suite.always else None


def _steps(
    suite: Suite, tests: Sequence[Collected], durations: Mapping[str, float], why: str
) -> Iterator[PlannedStep]:
    _demand(suite, tests)
    may_skip = {each.test for each in tests if not set(suite.may_skip).isdisjoint(each.markers)}
    for gpus, group in _by_gpus(suite, tests).items():
        seconds = estimates(group, durations, suite.assumed_s)
        count = 1 if suite.whole else shard_count(seconds, suite.shard_s)
        shards = [list(seconds)] if suite.whole else balanced(seconds, count)
        for number, shard in enumerate(shards, 1):
            yield PlannedStep(
                key=f"{suite.name}-{gpus}gpu" + (f"-{number}of{count}" if count > 1 else ""),
                suite=suite.name,
                gpus=gpus,
                shard=number,
                shards=count,
                timeout_min=suite.timeout_min,
                platform=suite.platform,
                arguments=list(suite.arguments),
                markers=suite.markers,
                may_skip=sorted(may_skip.intersection(shard)),
                engines=suite.engines,
                tests=shard,
                estimate_s=round(sum(seconds[test] for test in shard), 1),
                why=why,
            )


def _demand(suite: Suite, tests: Sequence[Collected]) -> None:
    if not tests:
        raise CiError(
            expected=f"tests in the suite {suite.name}",
            found="none",
            rule="an empty suite is never green",
            remedy="mend its tests and markers in ci/catalog.py",
        )
    greedy = [each for each in tests if each.gpus > suite.gpus and suite.platform == "cuda"]
    if greedy:
        raise CiError(
            expected=f"tests of at most {suite.gpus} GPUs in the suite {suite.name}",
            found=f"{greedy[0].test}, which needs {greedy[0].gpus}",
            rule="a step with too few GPUs skips or fails what it should run",
            remedy="give the suite more in ci/catalog.py, or choose other tests",
        )


def _by_gpus(suite: Suite, tests: Sequence[Collected]) -> dict[int, list[str]]:
    """One step per GPU count, so that no GPU idles; a whole suite takes what its widest needs."""
    if suite.platform != "cuda":
        return {0: [each.test for each in tests]}
    if suite.whole:
        return {suite.gpus: [each.test for each in tests]}
    groups: defaultdict[int, list[str]] = defaultdict(list)
    for each in tests:
        groups[each.gpus].append(each.test)
    return dict(sorted(groups.items()))


def write(path: Path, plan: BuildPlan) -> None:
    """Write the plan as indented JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")


def read(path: Path) -> BuildPlan:
    """Read a plan.

    Raises:
        CiError: it is not there, or no plan of this version.
    """
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=BuildPlan)
        if plan.version != VERSION:
            raise ValueError(f"version {plan.version}")  # noqa: TRY301
    except (OSError, ValueError) as error:
        raise CiError(
            expected=f"a plan of version {VERSION} at {path}",
            found=str(error),
            rule="without the plan nothing can be told to be missing",
            remedy="let the step that uploads the pipeline upload it as an artifact",
        ) from None
    return plan
