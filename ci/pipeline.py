"""A build's plan as a Buildkite pipeline, validated against the schema of buildkite-sdk. Pure."""

from __future__ import annotations

import functools
import importlib.resources
import json
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema
from buildkite_sdk.pipeline import Pipeline
from buildkite_sdk.schema import CommandStep, GroupStep

from ci import codes
from ci.catalog import QUEUES, Queue
from ci.errors import CiError
from ci.layout import OUTPUT, PLAN_FILE
from ci.plan import BuildPlan, PlannedStep

MAX_JOBS = 500
"""Buildkite takes no more of one upload."""

MARGIN_MIN = 3
"""Between the inner watchdog and Buildkite's timeout, to end pytest and upload the evidence."""
SUMMARY = "tprig-summary"
SUMMARY_TIMEOUT_MIN = 15

LOST_AGENT = (
    {"signal_reason": "agent_stop", "limit": 1},
    {"exit_status": -1, "signal_reason": "none", "limit": 1},
)
"""An agent that was stopped, and one that Buildkite lost contact with. Nothing that a test or a
time-out can cause: a time-out has the signal reason `cancel`."""


@dataclass(frozen=True)
class Style:
    """What differs between Buildkite clusters.

    Attributes:
        queues: GPU count -> queue.
        setup: commands before each step's own, such as the making of an environment.
        python: that runs `ci`.
    """

    queues: Mapping[int, Queue] = field(default_factory=lambda: QUEUES)
    setup: Sequence[str] = ()
    python: str = "python3"


def build(plan: BuildPlan, style: Style) -> Pipeline:
    """Return the pipeline.

    Raises:
        CiError: there is no queue for a GPU count, more jobs than one upload takes, or the
            result is not what the schema allows.
    """
    groups: defaultdict[int, list[PlannedStep]] = defaultdict(list)
    for step in plan.steps:
        groups[step.gpus].append(step)
    pipeline = Pipeline()
    for gpus, steps in sorted(groups.items()):
        pipeline.add_step(_group(gpus, steps, style))
    pipeline.add_step(CommandStep.model_validate(_summary(plan, style)))
    _demand_few(len(plan.steps) + 1)
    validate(pipeline.to_dict())
    return pipeline


def _group(gpus: int, steps: Sequence[PlannedStep], style: Style) -> GroupStep:
    name = "no GPU" if gpus == 0 else f"{gpus} GPU{'s' if gpus > 1 else ''}"
    return GroupStep.model_validate(
        {
            "group": f"tprig: {name}",
            "key": f"tprig-{gpus}gpu",
            "steps": [_step(step, _queue(step, style), style) for step in steps],
        }
    )


def _step(step: PlannedStep, queue: Queue, style: Style) -> dict[str, object]:
    part = f" ({step.shard} of {step.shards})" if step.shards > 1 else ""
    made: dict[str, object] = {
        "label": escaped(f"{step.suite}{part}, {step.gpus} GPU"),
        "key": step.key,
        "commands": _commands(style, "run", "--step", step.key),
        "agents": {"queue": queue.name},
        "timeout_in_minutes": step.timeout_min,
        "env": {"TPRIG_CI_DEADLINE_MIN": str(step.timeout_min - MARGIN_MIN)},
        "artifact_paths": [f"{OUTPUT}/{step.key}/**/*"],
        "soft_fail": [{"exit_status": codes.SOFT}],
        "retry": retry(),
    }
    return made | _limited(queue)


def _limited(queue: Queue) -> dict[str, object]:
    if queue.jobs_at_once is None:
        return {}
    return {
        "concurrency": queue.jobs_at_once,
        "concurrency_group": f"tprig/{queue.name}",
        "concurrency_method": "eager",
    }


def retry() -> dict[str, object]:
    """Once more where the agent was lost, and for no other reason; never what has passed."""
    return {
        "automatic": [dict(rule) for rule in LOST_AGENT],
        "manual": {"allowed": True, "permit_on_passed": False},
    }


def _summary(plan: BuildPlan, style: Style) -> dict[str, object]:
    """Runs whatever became of the others, fails by itself, and nothing softens it."""
    return {
        "label": "tprig: what ran, and what it says",
        "key": SUMMARY,
        "commands": _commands(style, "summary"),
        "agents": {"queue": _named(0, style).name},
        "timeout_in_minutes": SUMMARY_TIMEOUT_MIN,
        "artifact_paths": [f"{OUTPUT}/summary/**/*"],
        "depends_on": [{"step": step.key, "allow_failure": True} for step in plan.steps],
        "allow_dependency_failure": True,
        "retry": retry(),
    }


def _commands(style: Style, *words: str) -> list[str]:
    own = shlex.join([style.python, "-m", "ci", *words, "--plan", PLAN_FILE])
    return [escaped(command) for command in [*style.setup, own]]


def escaped(text: str) -> str:
    """As it must be uploaded to arrive as it is: the agent puts variables in place of `$NAME`."""
    return text.replace("$", "$$")


def _queue(step: PlannedStep, style: Style) -> Queue:
    return _named(step.gpus, style)


def _named(gpus: int, style: Style) -> Queue:
    if gpus not in style.queues:
        raise CiError(
            expected=f"a queue of agents with {gpus} GPUs",
            found=f"queues for {', '.join(map(str, sorted(style.queues)))}",
            rule="a step goes to agents that have its GPUs",
            remedy=f"name one: --queue {gpus}=NAME",
        )
    return style.queues[gpus]


def _demand_few(jobs: int) -> None:
    if jobs > MAX_JOBS:
        raise CiError(
            expected=f"at most {MAX_JOBS} jobs",
            found=f"{jobs}",
            rule="Buildkite takes no more of one upload",
            remedy="let shards take longer (shard_s in ci/catalog.py)",
        )


def validate(pipeline: dict[str, Any]) -> None:
    """Hold a pipeline against the schema that buildkite-sdk ships.

    Raises:
        CiError: it breaks the schema; the first place is named.
    """
    error = jsonschema.exceptions.best_match(_validator().iter_errors(pipeline))
    if error is not None:
        place = "/".join(map(str, error.absolute_path))
        raise CiError(
            expected="a pipeline that Buildkite's schema allows",
            found=f"{place}: {error.message[:300]}",
            rule="what it refuses would fail at upload",
            remedy="mend the catalogue or the options; or report a fault of ci",
        )


@functools.cache
def _validator() -> jsonschema.protocols.Validator:
    text = importlib.resources.files("buildkite_sdk").joinpath("schema.json").read_text("utf-8")
    schema = json.loads(text)
    return jsonschema.validators.validator_for(schema)(schema)


def explain(plan: BuildPlan, style: Style) -> str:
    """Say for every step where and why it runs, what it holds, and how it may end."""
    lines = []
    for step in plan.steps:
        queue = _queue(step, style)
        most = "" if queue.jobs_at_once is None else f", {queue.jobs_at_once} at once"
        lines += [
            f"{step.key}: {len(step.tests)} tests of {step.suite}, about {step.estimate_s:.0f} s",
            f"  on: queue {queue.name}, {step.gpus} GPUs{most}",
            f"  why: {step.why}",
            f"  ends: watchdog after {step.timeout_min - MARGIN_MIN} min, Buildkite after "
            f"{step.timeout_min} min; retried once if its agent is lost; only exit code "
            f"{codes.SOFT} is soft",
        ]
    lines += [f"{name}: not run: {why}" for name, why in plan.left_out.items()]
    lines.append(f"{SUMMARY}: after all {len(plan.steps)} steps, however they end; never soft")
    return "\n".join(lines)
