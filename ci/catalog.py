"""Which suites there are, what each needs, and which files' changes call for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ci.errors import CiError

DECISIVE = ("vllm/v1/worker/gpu/", "vllm/v1/sample/", "vllm/v1/spec_decode/")
"""Where vLLM samples, verifies drafts and proposes them."""
PARALLEL = ("vllm/distributed/", "vllm/v1/executor/", "vllm/model_executor/layers/")
ENGINE = ("vllm/v1/", "vllm/config/", "vllm/sampling_params.py", "vllm/outputs.py")
RIG = ("fixtures/", "gpu_scheduler/", "tprig/", "suites/", "conftest.py", "pyproject.toml")
"""What every suite of this repository stands on."""


class Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where steps of one GPU count run.

    Attributes:
        name: the agents' queue.
        jobs_at_once: how many may run there together, for hosts that others use too; None for
            as many as there are agents.
    """

    name: str
    jobs_at_once: int | None = None


class Suite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tests that are chosen, triggered and timed together.

    Attributes:
        name: unique; the beginning of its steps' keys.
        tests: files or folders, from the checkout's root.
        markers: pytest's `-m`; empty for all.
        gpus: devices that a step may have at most; no test of it may need more.
        timeout_min: of a step, in minutes.
        sources: prefixes of paths whose change calls for it, in a vLLM tree.
        own: the same in this repository.
        whole: its claims span its tests (parity, coverage), so it is one step, never sharded.
        shard_s: how long a shard should take.
        assumed_s: what a test is taken to need while none of the suite was ever measured.
        always: it runs whatever has changed.
        platform: what its engines run on.
        arguments: more for pytest.
        may_skip: markers of tests that may skip themselves here; any other skip leaves it open.
        engines: its tests run engines, so every step of it must bring a bundle.
    """

    name: str
    tests: tuple[str, ...]
    markers: str
    gpus: int
    timeout_min: int
    sources: tuple[str, ...]
    own: tuple[str, ...] = RIG
    whole: bool = False
    shard_s: float = 900.0
    assumed_s: float = 60.0
    always: bool = False
    platform: str = "cuda"
    arguments: tuple[str, ...] = ()
    may_skip: tuple[str, ...] = ()
    engines: bool = True


QUEUES: Mapping[int, Queue] = {
    0: Queue("cpu"),
    1: Queue("gpu_1"),
    2: Queue("gpu_2"),
    4: Queue("gpu_4"),
    8: Queue("gpu_8", jobs_at_once=1),
}
"""GPU count -> queue; `--queue 2=NAME` names another."""

SUITES: tuple[Suite, ...] = (
    Suite(
        name="cpu",
        tests=("suites",),
        markers="tp1 or tp2",
        gpus=0,
        timeout_min=30,
        sources=(*DECISIVE, *PARALLEL, *ENGINE),
        whole=True,
        always=True,
        platform="cpu",
        arguments=("--tprig-profile=smoke",),
        may_skip=("cuda_only",),
    ),
    Suite(
        name="tp1",
        tests=("suites",),
        markers="tp1",
        gpus=1,
        timeout_min=45,
        sources=(*DECISIVE, *ENGINE),
        whole=True,
    ),
    Suite(
        name="main",
        tests=("suites",),
        markers="tp1 or tp2",
        gpus=2,
        timeout_min=60,
        sources=(*DECISIVE, *PARALLEL, *ENGINE),
        whole=True,
    ),
    Suite(
        name="faults",
        tests=("suites",),
        markers="faults and (tp1 or tp2)",
        gpus=2,
        timeout_min=45,
        sources=(*DECISIVE, "vllm/distributed/"),
    ),
    Suite(
        name="rig",
        tests=("tests",),
        markers="not engine",
        gpus=0,
        timeout_min=20,
        sources=(),
        own=(*RIG, "tests/", "ci/", "benchmarks/"),
        shard_s=600.0,
        assumed_s=0.3,
        platform="cpu",
        arguments=("-n", "2", "--dist", "loadgroup"),
        engines=False,
    ),
)


def read(path: Path) -> tuple[Suite, ...]:
    """Read a catalogue of one's own: TOML, with a table `[[suite]]` for each.

    Raises:
        CiError: it cannot be read, holds none, or two of one name.
    """
    try:
        suites = msgspec.toml.decode(path.read_bytes(), type=_Document).suite
    except (OSError, msgspec.DecodeError) as error:
        found = str(error)
    else:
        if suites and len({suite.name for suite in suites}) == len(suites):
            return tuple(suites)
        found = f"suites named {', '.join(suite.name for suite in suites) or 'nothing'}"
    raise CiError(
        expected=f"a catalogue with [[suite]] tables of different names in {path}",
        found=found,
        rule="the fields are those of ci.catalog.Suite",
        remedy="see docs/buildkite.md",
    )


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    suite: list[Suite]
