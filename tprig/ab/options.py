"""What a measurement is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tprig.ab.shapes import SHAPES
from tprig.engine import Deadlines
from tprig.evidence import Metric
from tprig.spec import EngineSpec, Platform


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
    """How it is measured and judged; the plan holds all of it.

    Attributes:
        shapes: workloads, each measured by itself.
        pairs: of each; even.
        warm_ups: complete workloads of each arm before the first pair.
        seed: decides requests and order.
        gates: the metrics that decide.
        margin: the loss that is put up with, as a fraction.
        equivalence: True to demand no gain beyond the margin either.
        confidence: of the two-sided intervals.
        resamples: of the plain percentile bootstrap.
        faults: planted in arm b, by name.
        max_foreign_load: cores of foreign work beyond which a pair is void; None for no bound.
        only_differs: globs over what may differ between the arms; None demands nothing.
    """

    shapes: Sequence[str] = ("c16", "c64")
    pairs: int = 10
    warm_ups: int = 6
    seed: int = 0
    gates: Sequence[Metric] = ("throughput",)
    margin: float = 0.02
    equivalence: bool = False
    confidence: float = 0.95
    resamples: int = 50_000
    faults: Sequence[str] = ()
    max_foreign_load: float | None = 0.25
    only_differs: Sequence[str] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arms:
    """The settings of the arms, as `tprig.ab.arms` reads them.

    Attributes:
        both: what they share, beyond the rig's own.
        a: the baseline's.
        b: those of what is held against it; None for an A/A, two engines of arm a.
    """

    both: Sequence[str] = ()
    a: Sequence[str] = ()
    b: Sequence[str] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Everything else.

    Attributes:
        model: checkpoint with a multi-token-prediction layer.
        python: interpreter of the vLLM under test, unless an arm names another one.
        bundle: where the evidence goes; must not hold anything.
        overlays: folder for trees that are laid over an interpreter's vLLM.
        test: whose claims they are.
        name: ends the ids of claims and runs, where a bundle holds several comparisons of a shape.
    """

    model: Path
    python: str
    platform: Platform
    tensor_parallel_size: int
    dtype: str
    bundle: Path
    overlays: Path
    arms: Arms
    design: Design = dataclasses.field(default_factory=Design)
    deadlines: Deadlines = dataclasses.field(default_factory=Deadlines)
    lease_wait_s: float = 3600.0
    command: Sequence[str] = ()
    test: str = "tprig ab"
    name: str = ""


def base_spec(options: Options, shape: str) -> EngineSpec:
    """What both arms share for a shape."""
    size = SHAPES[options.platform][shape]
    return EngineSpec(
        model=options.model,
        platform=options.platform,
        tensor_parallel_size=options.tensor_parallel_size,
        python=options.python,
        arguments={
            "dtype": options.dtype,
            "max_model_len": size.max_model_len,
            "max_num_seqs": size.concurrent,
            "enable_prefix_caching": False,
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 3},
            **(_cuda_arguments(options.dtype) if options.platform == "cuda" else {}),
        },
    )


def _cuda_arguments(dtype: str) -> Mapping[str, Any]:
    """FlashAttention has no float32, in which the reference checkpoint is."""
    return {"attention_backend": "TRITON_ATTN"} if dtype == "float32" else {}
