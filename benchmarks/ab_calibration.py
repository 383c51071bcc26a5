"""Error rates of the paired analysis by simulation, and what the analysis costs.

    python benchmarks/ab_calibration.py [--measurements 40000]

Prints, for pair differences that are normal, skewed (ex-Gaussian) or heavy-tailed (Student's t, 4
degrees of freedom), without and with a linear drift and an effect of coming first: how often the
95% interval that verdicts rest on holds the truth at 10 pairs, and beside it the plain percentile
bootstrap; then how often a change of nothing is called a NO-GO, the power as computed and as it
came out, and the time of one analysis against `scipy.stats.bootstrap`. The last line is a summary;
ends 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.tprig.checkers.ab.designs import comparison
from tests.tprig.checkers.ab.simulate import (
    BEYOND,
    NOISES,
    World,
    adjusted_bounds,
    draw,
    percentile_bounds,
)
from tprig.checkers.ab import intervals
from tprig.checkers.ab.analysis import analyse_gains
from tprig.checkers.ab.decide import Margins, margins, pairs_to_decide
from tprig.checkers.ab.pairs import Pair

COVERS = (0.94, 0.96)
FALSE_NO_GO = 0.025
MARGIN = 0.02
DEVIATION = 0.02
"""Of one pair, in logarithms: at 10 pairs a margin of 2% then has a power near 80%."""
LIMIT = math.log1p(-MARGIN) / DEVIATION
WORLDS = {"steady": World(), "drift": World(drift=0.7), "first": World(first=1.0)}
RATIO = 0.5
ENUMERATION_S = 0.2


def main() -> int:
    """Simulate, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measurements", type=int, default=40_000)
    options = parser.parse_args()
    began_s, missed = time.perf_counter(), []
    for check in (coverage, errors, power):
        missed += [text for text in check(options.measurements) if text]
    missed += [text for text in costs() if text]
    took_s = time.perf_counter() - began_s
    verdict = f"missed: {'; '.join(missed)}" if missed else "all bounds held"
    print(f"ab_calibration: {verdict}; {took_s:.1f} s")
    return 1 if missed else 0


def _world(noise: str, like: World, truth: float = 0.0) -> World:
    return World(noise=noise, drift=like.drift, first=like.first, truth=truth)


def coverage(measurements: int) -> Iterator[str]:
    """How often the interval holds the truth."""
    print(f"coverage of 95% intervals, 10 pairs, {measurements} measurements each")
    print(f"{'noise':14}{'world':8}{'verdict':>9}{'plain percentile':>18}")
    for noise in (*NOISES, *BEYOND):
        for seed, (name, like) in enumerate(WORLDS.items()):
            drawn = draw(_world(noise, like), measurements, seed)
            ours = adjusted_bounds(drawn).coverage(0)
            plain = percentile_bounds(drawn, 0.025).coverage(0)
            bounded = noise in NOISES
            print(f"{noise:14}{name:8}{ours:9.4f}{plain:18.4f}{'' if bounded else '  (no bound)'}")
            if bounded and not COVERS[0] <= ours <= COVERS[1]:
                yield f"coverage {ours:.4f} of {noise} under {name}, expected 0.94 to 0.96"


def errors(measurements: int) -> Iterator[str]:
    """How often a harmless change is called a NO-GO."""
    print(f"false NO-GO, margin {MARGIN:.0%}, deviation of a pair {DEVIATION:.0%}")
    for noise in NOISES:
        rates = {}
        for truth in (0.0, LIMIT):
            drawn = draw(_world(noise, WORLDS["drift"], truth), measurements, 11)
            rates[truth] = float((adjusted_bounds(drawn).high < LIMIT).mean())
        print(f"{noise:14}no change {rates[0.0]:.4f}, a loss of just the margin {rates[LIMIT]:.4f}")
        if rates[0.0] > FALSE_NO_GO:
            yield f"false NO-GO {rates[0.0]:.4f} of {noise}, expected at most {FALSE_NO_GO}"


def power(measurements: int) -> Iterator[str]:
    """The power that the noncentral t distribution gives, and what comes out."""
    for deviation in (0.01, 0.02, 0.03):
        limit = math.log1p(-MARGIN) / deviation
        drawn = draw(World(), measurements, 5)
        found = float((adjusted_bounds(drawn).low > limit).mean())
        computed = intervals.power(-limit, 1.0, 10, 8, 0.95)
        print(
            f"power of GO at 10 pairs, deviation {deviation:.0%}: {computed:.4f}, found {found:.4f}"
        )
        allowed = 4 * math.sqrt(computed * (1 - computed) / measurements) + 1e-4
        if abs(found - computed) > allowed:
            yield f"power {found:.4f}, computed {computed:.4f}"
    mean = intervals.Mean(0.0, 0.03, 8, 10)
    needed = pairs_to_decide(mean, 0.95, _limits())
    print(f"deviation 3%, estimate 0: {needed} pairs would decide")


def _limits() -> Margins:
    return margins(MARGIN, equivalence=False)


def costs() -> Iterator[str]:
    """One analysis of 10 pairs, and the enumeration by itself."""
    values = draw(World(), 1, 3).differences[0] * DEVIATION
    design = comparison(10, resamples=50_000)
    pairs = [Pair(i, order, None, None, None, ()) for i, order in enumerate(design.order)]
    intervals._multisets.cache_clear()
    cold_s = _timed(lambda: intervals.bootstrap(values, 0.95, 50_000, 0), 1)
    ours_s = _timed(lambda: analyse_gains(design, "throughput", pairs, list(values)), 7)
    theirs_s = _timed(
        lambda: stats.bootstrap((values,), np.mean, n_resamples=50_000, method="percentile", rng=0),
        7,
    )
    ratio = ours_s / theirs_s
    print(
        f"enumeration, first time {cold_s:.3f} s; analysis of 10 pairs {ours_s * 1e3:.1f} ms, "
        f"scipy.stats.bootstrap {theirs_s * 1e3:.1f} ms: {ratio:.2f}x (CPU time)"
    )
    if cold_s > ENUMERATION_S:
        yield f"enumeration {cold_s:.3f} s, expected at most {ENUMERATION_S}"
    if ratio > RATIO:
        yield f"analysis {ratio:.2f}x of scipy.stats.bootstrap, expected at most {RATIO}"


def _timed(call: Callable[[], object], times: int) -> float:
    taken_s = []
    for _ in range(times):
        began_s = time.process_time()
        call()
        taken_s.append(time.process_time() - began_s)
    return float(np.median(taken_s))


if __name__ == "__main__":
    sys.exit(main())
