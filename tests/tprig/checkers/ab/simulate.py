"""Pair differences with known truth: what intervals and decisions are held against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special

from tprig.checkers.ab.intervals import Floats
from tprig.checkers.ab.order import draw_order, signs

Noise = Callable[[np.random.Generator, tuple[int, int]], Floats]


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.standard_normal(shape)


def _skewed(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Ex-Gaussian, the usual model of latencies: skewness 0.71."""
    return (rng.standard_normal(shape) + rng.exponential(size=shape) - 1) / math.sqrt(2)


def _heavy(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Student's with four degrees of freedom: no fourth moment."""
    return rng.standard_t(4, shape) / math.sqrt(2)


def _gamma(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return (rng.gamma(4, 1, shape) - 4) / 2


def _exponential(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.exponential(size=shape) - 1


NOISES: Mapping[str, Noise] = {"normal": _normal, "skewed": _skewed, "heavy-tailed": _heavy}
"""Of unit variance and mean zero."""
BEYOND: Mapping[str, Noise] = {"skewness 1": _gamma, "skewness 2": _exponential}
"""Worse than what a bound is held for; told all the same."""


@dataclass(frozen=True, kw_only=True)
class World:
    """How pairs come about, in units of the noise's deviation.

    Attributes:
        truth: the mean difference.
        drift: change from each run to the next, linear in time.
        first: what the first run of a pair has over the second.
    """

    noise: str = "normal"
    pairs: int = 10
    truth: float = 0.0
    drift: float = 0.0
    first: float = 0.0


@dataclass(frozen=True)
class Drawn:
    """Many measurements of one world."""

    differences: Floats
    """`[measurements, pairs]`."""
    directions: Floats
    """`[pairs]`."""


def draw(world: World, measurements: int, seed: int) -> Drawn:
    """Differences b - a of a world whose runs drift, in the order that the design draws."""
    rng = np.random.default_rng(seed)
    directions = np.asarray(signs(draw_order(world.pairs, seed)), dtype=np.float64)
    noise = ({**NOISES, **BEYOND})[world.noise](rng, (measurements, world.pairs))
    # In a pair AB, b is measured one run later, and a has come first.
    systematic = directions * (world.drift - world.first)
    return Drawn(world.truth + systematic + noise, directions)


@dataclass(frozen=True)
class Bounds:
    """`[measurements]` each."""

    low: Floats
    high: Floats

    def coverage(self, truth: float) -> float:
        """The fraction that holds the truth."""
        return float(((self.low <= truth) & (truth <= self.high)).mean())


def adjusted_bounds(drawn: Drawn, confidence: float = 0.95) -> Bounds:
    """`intervals.adjusted_mean(...).interval(...)` of every measurement at once.

    A test holds the two against each other.
    """
    forward = drawn.differences[:, drawn.directions > 0]
    backward = drawn.differences[:, drawn.directions < 0]
    estimate = (forward.mean(axis=1) + backward.mean(axis=1)) / 2
    freedom = drawn.differences.shape[1] - 2
    squares = forward.var(axis=1) * forward.shape[1] + backward.var(axis=1) * backward.shape[1]
    error = np.sqrt(squares / freedom * (1 / forward.shape[1] + 1 / backward.shape[1])) / 2
    half = special.stdtrit(freedom, (1 + confidence) / 2) * error
    return Bounds(estimate - half, estimate + half)


def percentile_bounds(
    drawn: Drawn, tail: float, resamples: int = 2000, measurements: int = 4000
) -> Bounds:
    """Percentile bootstrap intervals of the first measurements, by resamples that they share."""
    values = drawn.differences[:measurements]
    count = values.shape[1]
    weights = np.random.default_rng(7).multinomial(count, [1 / count] * count, resamples) / count
    quantiles = np.quantile(values @ weights.T, [tail, 1 - tail], axis=1)
    return Bounds(quantiles[0], quantiles[1])
