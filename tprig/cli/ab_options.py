"""The options of `tprig ab`, as typer reads them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

_Path = Path | None
_Words = list[str] | None


def _bound(value: float) -> float:
    # NaN is no bound at all, and would not be noticed.
    if math.isnan(value) or value < 0:
        raise typer.BadParameter("expected a number of at least 0")
    return value


From = Annotated[
    _Path, typer.Option("--from", metavar="BUNDLE", help="Analyse again what a bundle holds.")
]
Model = Annotated[_Path, typer.Option(help="Checkpoint with a multi-token-prediction layer.")]
ArmA = Annotated[_Words, typer.Option("-a", help="A setting of arm a, the baseline.")]
ArmB = Annotated[
    _Words,
    typer.Option(
        "-b",
        help="A setting of arm b: replay=on|off, python=PATH, tree=PATH[@REV], env:NAME=VALUE, "
        "arg:NAME=JSON.",
    ),
]
Both = Annotated[_Words, typer.Option(help="A setting of both arms.")]
Identical = Annotated[
    bool, typer.Option("--aa", help="Two engines of arm a: what this machine can resolve.")
]
Shapes = Annotated[
    _Words, typer.Option("--shape", help="smoke, c16 or c64; c16 and c64 by default.")
]
Pairs = Annotated[int, typer.Option(min=4, help="Of each shape; even.")]
WarmUps = Annotated[int, typer.Option(min=0, help="Workloads of each arm before the first pair.")]
Seed = Annotated[int, typer.Option(min=0, help="Decides requests and order.")]
Gates = Annotated[
    _Words, typer.Option("--gate", help="A metric that decides; throughput by default.")
]
Margin = Annotated[float, typer.Option(help="The loss that is put up with, as a fraction.")]
Equivalence = Annotated[
    bool, typer.Option("--equivalence", help="Demand no gain beyond the margin either (TOST).")
]
OnlyDiffers = Annotated[
    _Words, typer.Option(metavar="GLOB", help="The arms may differ in nothing else.")
]
Plant = Annotated[_Words, typer.Option(help="A slowdown in arm b: slow-4, slow-10 or stall.")]
MaxForeignLoad = Annotated[
    float,
    typer.Option(callback=_bound, help="Cores of foreign work that void a pair; inf for no bound."),
]
Platform = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option(help="auto: CUDA where NVML shows a GPU.")
]
TensorParallelSize = Annotated[int, typer.Option("--tp", min=1, help="Ranks of each engine.")]
Dtype = Annotated[str, typer.Option(help="vLLM's dtype.")]
Python = Annotated[
    _Path,
    typer.Option(
        "--vllm-python",
        help="Interpreter of the vLLM under test; by default the one running this.",
    ),
]
Into = Annotated[_Path, typer.Option(help="The bundle's folder, which must not hold anything.")]
