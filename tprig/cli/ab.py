"""`tprig ab`."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from rich.text import Text

import gpu_scheduler
from tprig.ab import ArmError, Arms, Design, Options, measure_all
from tprig.bundle import Bundle
from tprig.cache import cache_root
from tprig.checkers.ab.metrics import METRICS
from tprig.cli.check import first_counter_example
from tprig.cli.opening import opened
from tprig.cli.terminal import show, write_json
from tprig.clock import utc_now
from tprig.evidence import Metric
from tprig.judged import Judged, judge_again
from tprig.report.ab import comparisons, document
from tprig.report.summary import summary
from tprig.report.text import one_line
from tprig.spec import Platform


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What the command was given."""

    model: Path | None
    a: Sequence[str] | None
    b: Sequence[str] | None
    both: Sequence[str] | None
    aa: bool
    shapes: Sequence[str] | None
    pairs: int
    warm_ups: int
    seed: int
    gates: Sequence[str] | None
    margin: float
    equivalence: bool
    only_differs: Sequence[str] | None
    plant: Sequence[str] | None
    max_foreign_load: float
    platform: Literal["auto", "cpu", "cuda"]
    tensor_parallel_size: int
    dtype: str
    python: str
    into: Path | None
    as_json: bool


def run(request: Request) -> int:
    """Measure, print, and return the exit code.

    Raises:
        ArmError: for what cannot be meant.
    """
    began_s = time.monotonic()

    def say(text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - began_s), 60)
        print(one_line(f"[{minutes:02d}:{seconds:02d}] {text}"), file=sys.stderr, flush=True)

    options = read(request)
    say(f"bundle: {options.bundle}")
    return _shown(measure_all(options, say), as_json=request.as_json)


def again(root: Path, *, as_json: bool) -> int:
    """Analyse again what a bundle holds, and return the exit code."""
    return _shown(opened(root), as_json=as_json)


def _shown(bundle: Bundle, *, as_json: bool) -> int:
    judged = judge_again(bundle)
    if as_json:
        write_json({"exit_code": judged.exit_code, **document(bundle, judged.verdicts)})
        return judged.exit_code
    for problem in bundle.problems:
        print(one_line(str(problem)), file=sys.stderr)
    show(*comparisons(bundle))
    if judged.verdicts is not None:
        show(summary(judged.verdicts.verdicts))
        show(*first_counter_example(judged.verdicts.verdicts))
    show(Text(_conclusion(bundle, judged), style="bold"))
    return judged.exit_code


_WORDS = {0: "GO", 1: "NO-GO", 2: "INCONCLUSIVE", 3: "damaged: nothing was judged"}


def _conclusion(bundle: Bundle, judged: Judged) -> str:
    return f"{_WORDS[judged.exit_code]}: {one_line(str(bundle.root))}"


def read(request: Request) -> Options:
    """What the command was given, checked.

    Raises:
        ArmError: for what cannot be meant.
    """
    if request.model is None:
        raise ArmError(
            "expected --model with a checkpoint that has a multi-token-prediction layer, found "
            "none; in a checkout `python -m fixtures.checkpoints` builds one and prints its folder"
        )
    arms = Arms(
        both=request.both or (),
        a=request.a or (),
        b=None if _identical(request) else request.b or (),
    )
    platform = _platform(request.platform)
    return Options(
        model=request.model.absolute(),
        python=request.python,
        platform=platform,
        tensor_parallel_size=request.tensor_parallel_size,
        dtype=request.dtype,
        bundle=request.into or Path(".tprig") / "bundles" / f"{utc_now().replace(':', '')}-ab",
        overlays=cache_root() / "overlays",
        arms=arms,
        command=["tprig", *sys.argv[1:]],
        design=_design(request),
    )


def _identical(request: Request) -> bool:
    if request.aa and request.b:
        raise ArmError("expected either --aa or settings of arm b, found both")
    if not (request.aa or request.b or request.a or request.plant):
        raise ArmError(
            "expected something to measure, found no setting of an arm: give arm b one "
            "(-b replay=on), plant a slowdown (--plant slow-10), or ask for an A/A (--aa)"
        )
    # A planted slowdown by itself is held against an engine of the same spec.
    return request.aa or not (request.a or request.b)


def _design(request: Request) -> Design:
    if not 0 < request.margin < 1:
        raise ArmError(f"--margin: expected a fraction between 0 and 1, found {request.margin:g}")
    unbounded = math.isinf(request.max_foreign_load)
    return Design(
        shapes=request.shapes or Design().shapes,
        pairs=request.pairs,
        warm_ups=request.warm_ups,
        seed=request.seed,
        gates=[_metric(name) for name in request.gates or ()] or Design().gates,
        margin=request.margin,
        equivalence=request.equivalence,
        faults=list(dict.fromkeys(request.plant or ())),
        max_foreign_load=None if unbounded else request.max_foreign_load,
        only_differs=request.only_differs,
    )


def _metric(name: str) -> Metric:
    for known in get_args(Metric):
        if name == known:
            return name  # type: ignore[return-value]
    raise ArmError(f"--gate: expected a metric among {', '.join(METRICS)}, found {name!r}")


def _platform(asked: Literal["auto", "cpu", "cuda"]) -> Platform:
    if asked == "auto":
        return "cuda" if gpu_scheduler.inventory().devices else "cpu"
    return asked
