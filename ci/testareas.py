"""vLLM's own pipeline files, `.buildkite/test_areas/*.yaml`: read, and written for this rig."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml

from ci.catalog import Suite
from ci.errors import CiError
from ci.pipeline import MARGIN_MIN
from ci.plan import BuildPlan, PlannedStep

DEVICE = "h100"
CHECKOUT = "/tprig"
"""Where the image of the step has this repository."""


class Step(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step, by vLLM's names."""

    label: str
    key: str | None = None
    commands: list[str] = []
    command: str | None = None
    device: str | None = None
    gpu: str | None = None
    num_devices: int | None = None
    num_gpus: int | None = None
    num_nodes: int | None = None
    timeout_in_minutes: int | None = None
    working_dir: str | None = None
    source_file_dependencies: list[str] = []
    mirror: dict[str, dict[str, object]] = {}
    optional: bool = False
    parallelism: int | None = None
    automatic_shard: bool = False
    depends_on: list[str] | None = None
    dind: bool | None = None
    env: dict[str, str | int] = {}
    soft_fail: bool | list[dict[str, int]] = False
    autorun_on_main: bool = False
    no_plugin: bool = False
    condition: str | None = msgspec.field(default=None, name="if")
    allow_dependency_failure: bool = False
    retry: dict[str, object] = {}
    artifact_paths: list[str] | str | None = None


class Area(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One file: a group of steps."""

    group: str
    depends_on: list[str] = []
    steps: list[Step]


def read(path: Path) -> Area:
    """Read one file.

    Raises:
        CiError: it cannot be read, or holds a field that vLLM's had not when this was written.
    """
    try:
        return msgspec.convert(yaml.safe_load(path.read_text("utf-8")), Area)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise CiError(
            expected=f"a group of steps, as in vLLM's test_areas, in {path}",
            found=" ".join(str(error).split())[:300],
            rule="a field that is not known may change what a step runs, and is not passed over",
            remedy="mend the file; or, if it is vLLM's, add the field to ci/testareas.py",
        ) from None


def emit(plan: BuildPlan, suites: Mapping[str, Suite], device: str = DEVICE) -> str:
    """Return the plan as such a file: one step for each that needs a GPU.

    A step there has no plan of the build to read, so it makes its own, of its one suite.
    """
    steps = [_step(each, suites[each.suite], device) for each in plan.steps if each.gpus]
    if not steps:
        raise CiError(
            expected="at least one suite with GPUs",
            found="none in this plan",
            rule="vLLM's test areas name the device of each step",
            remedy="choose a suite of platform cuda with --suite",
        )
    area = Area(
        group="Tensor-parallel speculative decoding", depends_on=["image-build"], steps=steps
    )
    return yaml.safe_dump(msgspec.to_builtins(area), sort_keys=False, width=1000)


def _step(step: PlannedStep, suite: Suite, device: str) -> Step:
    part = f" {step.shard} of {step.shards}" if step.shards > 1 else ""
    return Step(
        label=f"tprig {step.suite}{part} ({step.gpus} GPU)",
        key=f"tprig-{step.key}",
        timeout_in_minutes=step.timeout_min,
        device=device,
        num_devices=step.gpus,
        working_dir=CHECKOUT,
        source_file_dependencies=list(suite.sources),
        commands=[
            f"python3 -m ci pipeline --suite {step.suite} --check",
            f"export TPRIG_CI_DEADLINE_MIN={step.timeout_min - MARGIN_MIN}",
            # What it has recorded is uploaded however it ends, and its exit code stays.
            f"trap 'buildkite-agent artifact upload \".tprig/ci/{step.key}/**/*\"' EXIT",
            f"python3 -m ci run --step {step.key} --local-plan",
        ],
    )
