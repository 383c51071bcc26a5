"""What a paired measurement plans before its first run, and what it notes beside each run.

A pair is one measured run of each arm, one right after the other. The times themselves are in the
runs' own streams (`steps.jsonl`, `outputs.jsonl`); nothing here repeats them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tprig.evidence.base import Count, Name, Record

Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
ArmName = Literal["a", "b"]
PairOrder = Literal["ab", "ba"]
Metric = Literal[
    "throughput", "step_mean", "step_p50", "step_p95", "step_p99", "first_token", "inter_token"
]
Fraction = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class Comparison(Record, frozen=True, kw_only=True):
    """How a claim on cost is measured and judged; part of the claim, so of the plan."""

    shape: Name
    """The workload that every run serves."""
    a: str
    """The baseline, in words."""
    b: str
    """What is held against it, in words."""
    identical: bool
    """True for an A/A: the arms may differ in nothing."""
    seed: Count
    """Decides the order of the pairs, and which runs a planted stall falls into."""
    order: Annotated[list[PairOrder], msgspec.Meta(min_length=1, max_length=10_000)]
    """Which arm comes first in each pair: blocks of two pairs, `ab ba` or `ba ab`."""
    warm_ups: Count
    """Complete workloads that each arm serves before the first pair."""
    gates: Annotated[list[Metric], msgspec.Meta(min_length=1)]
    """The metrics that decide; the others are told."""
    margin: Fraction
    """The loss that is put up with, as a fraction of the baseline."""
    equivalence: bool
    """True to demand that the arms are alike within the margin, in both directions."""
    confidence: Fraction
    """Of the two-sided intervals."""
    resamples: Annotated[int, msgspec.Meta(ge=100, le=10_000_000)]
    """Of the plain percentile bootstrap, where it is not enumerated."""
    planted: dict[str, list[Count]]
    """Fault -> the pairs in which arm b carries it."""
    max_foreign_load: float | None
    """Cores' worth of other people's work beside a run beyond which its pair is void."""
    only_differs: list[str] | None
    """Globs over what may differ between the arms; None demands nothing."""
    changed_files: list[str] = []
    """Files of vLLM that the arms' trees have otherwise than one another."""


class GpuReading(Record, frozen=True, kw_only=True):
    """A GPU's own account of itself at one moment of a run."""

    uuid: Name
    at_ns: Count
    """From the run's beginning, on the measuring process's monotonic clock."""
    sm_clock_mhz: Count | None
    memory_clock_mhz: Count | None
    temperature_c: int | None
    power_mw: Count | None
    throttle: list[str] | None
    """Why its clocks are below what was asked for, by NVML's names; `[]` when nothing holds them
    down."""
    processes: Count | None
    """Processes that compute on it."""


class Sample(Record, frozen=True, kw_only=True):
    """`runs/<id>/sample.json`: what ties one run to the plan and to the run before it."""

    run: Name
    claim: Name
    design: Digest
    """SHA-256 of the claim as it was planned, of which the comparison is a part."""
    position: Count
    """Place among the runs of the claim that have a sample, in order of time."""
    previous: Digest | None
    """SHA-256 of the sample before this one; None for the first."""
    began_ns: Count
    """From the beginning of the first, on the measuring process's monotonic clock."""
    spec: Digest
    """SHA-256 of the engine's `spec.json` as a record."""
    steps: Digest
    """SHA-256 over the records of `steps.jsonl`."""
    outputs: Digest
    """SHA-256 over the records of `outputs.jsonl`."""
    foreign_load: float | None
    """Cores' worth of work on the engine's cores that was not the engine's; None on GPUs."""
    readings: list[GpuReading]


class HostTensor(Record, frozen=True, kw_only=True):
    """One tensor that a step copied from the device to the host."""

    name: Name
    dtype: Name
    shape: list[Count]
    size_bytes: Count
    rows: Count
    """Length of its first dimension."""


class HostCopies(Record, frozen=True, kw_only=True, tag="host-copies"):
    """What one step copied to the host, on one rank, and what came of it."""

    step: Count
    tensors: list[HostTensor]
    committed: Count
    """Tokens that the step sampled, accepted drafts among them."""


class DeviceTimes(Record, frozen=True, kw_only=True, tag="device-times"):
    """Where one step's copy and proposal lie on the device's timeline (CUDA events)."""

    step: Count
    copy_start_ms: float
    """From the step's first event, as all of these."""
    copy_end_ms: float
    proposal_start_ms: float
    proposal_end_ms: float
