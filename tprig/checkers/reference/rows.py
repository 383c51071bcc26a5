"""A row of logits with what float32 leaves open of it, and the arithmetic of such rows.

The reference computes in float64. Next to each value it keeps how far vLLM's float32 value may be
from it: a bound on the rounding of each operation, carried along. Two tokens whose inputs were the
same have the same value *and* the same error: they tie exactly, in float32 too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]

ROUNDING = 2.0**-22
"""Relative error allowed to one float32 operation: 4 roundings of 2**-24.

An IEEE operation needs one; `div.full`, `ex2.approx` and `lg2.approx` of a GPU need up to four.
"""

FLOAT32_MAX = float(np.finfo(np.float32).max)
FLOAT32_TINY = 2.0**-126
"""Below it float32 is denormal, and may be flushed to zero."""
FLOAT32_ZERO = 2.0**-151
"""Below it everything is zero in float32."""


def sum_error(terms: int) -> float:
    """Relative error of a float32 sum of that many positive terms, in an order that is not known.

    Roundings add up like a random walk; four standard deviations, and 16 roundings at least.
    """
    return 2.0**-24 * max(16.0, 4.0 * math.sqrt(terms) / math.sqrt(12.0))


@dataclass(frozen=True)
class Interval:
    """A real number and the bounds of vLLM's float32 value of it."""

    value: float
    low: float
    high: float

    @staticmethod
    def around(value: float, error: float) -> Interval:
        """A value and its error, which does not matter where the value is infinite or NaN."""
        error = error if math.isfinite(value) else 0.0
        return Interval(value, value - error, value + error)

    def plus(self, other: Interval, error: float = 0.0) -> Interval:
        """The sum, with the rounding of the addition on top; NaN where infinities meet."""
        return Interval(
            self.value + other.value, self.low + other.low - error, self.high + other.high + error
        )

    def minus(self, other: Interval, error: float = 0.0) -> Interval:
        """The difference, with the rounding of the subtraction on top."""
        return self.plus(Interval(-other.value, -other.high, -other.low), error)

    @property
    def error(self) -> float:
        """The larger distance of a bound from the value."""
        return max(self.value - self.low, self.high - self.value)


@dataclass(frozen=True, eq=False)
class Scores:
    """Numbers of one row, of which some maximum is sought or sum made, between bounds."""

    value: Reals
    low: Reals
    high: Reals

    def plus(self, other: Interval | Reals, error: float | Reals = 0.0) -> Scores:
        """The sum with one number, or with as many exact ones, and the error of adding them."""
        if isinstance(other, Interval):
            value, low, high = other.value, other.low, other.high
            return Scores(self.value + value, self.low + low - error, self.high + high + error)
        return Scores(self.value + other, self.low + other - error, self.high + other + error)


@dataclass(frozen=True, eq=False)
class Quota:
    """Tokens that tie at a filter's edge: so many of them are kept, no matter which."""

    members: Bools
    room: int


@dataclass(frozen=True, eq=False)
class Row:
    """Logits of one row, all arrays of the row's width."""

    value: Reals
    """-inf where the token is masked for certain."""
    error: Reals
    """0 where the value is exact or infinite."""
    kept: Bools
    """Tokens with a finite value after the filters, in float64."""
    maybe: Bools
    """Tokens of which float32, or the backend's order of ties, may decide otherwise."""
    quota: Quota | None = None
    """How many of some of the tokens that may be kept are kept for certain."""

    @staticmethod
    def of(value: Reals, error: Reals) -> Row:
        """A row that no filter has seen."""
        return Row(value, error, value > -np.inf, np.zeros(len(value), dtype=np.bool_))

    def narrowed(self, width: int) -> Row:
        """The first tokens alone."""
        if width == len(self.value):
            return self
        first = slice(width)
        return Row(self.value[first], self.error[first], self.kept[first], self.maybe[first])

    def without(self, token: int) -> Row:
        """The same row with one token masked for certain."""
        kept, maybe = self.kept.copy(), self.maybe.copy()
        kept[token] = maybe[token] = False
        return Row(self.value, self.error, kept, maybe)

    def admits(self, kept: Bools) -> bool:
        """Whether vLLM may have kept exactly these tokens."""
        quota = self.quota
        if quota is not None and int(kept[quota.members].sum()) != quota.room:
            return False
        return bool(np.all(self.maybe | (kept == self.kept)))

    def settled(self, kept: Bools) -> Row:
        """The row with these tokens kept for certain, where it admits them; otherwise itself."""
        if not self.admits(kept):
            return self
        return Row(self.value, self.error, kept, np.zeros_like(kept))

    @property
    def present(self) -> Bools:
        """Tokens that are or may be kept."""
        return self.kept | self.maybe

    @property
    def certain(self) -> Bools:
        """Tokens that are kept for certain."""
        return self.kept & ~self.maybe

    def nominal(self) -> Reals:
        """The processed logits."""
        return np.where(self.kept, self.value, -np.inf)

    def scores(self) -> Scores:
        """The same with bounds, whose lower one is -inf where a token may be masked."""
        return Scores(
            self.nominal(),
            np.where(self.certain, self.value - self.error, -np.inf),
            np.where(self.present, self.value + self.error, -np.inf),
        )

    def at(self, token: int) -> Interval:
        """One token's logit."""
        value, error = float(self.value[token]), float(self.error[token])
        kept, maybe = bool(self.kept[token]), bool(self.maybe[token])
        return Interval(
            value if kept else -math.inf,
            value - error if kept and not maybe else -math.inf,
            value + error if kept or maybe else -math.inf,
        )

    @cached_property
    def log_mass(self) -> LogMass:
        """log(sum(exp(logits))): NaN for a row with nothing in it, as vLLM has it."""
        ids = np.flatnonzero(self.present)
        if not len(ids):
            return LogMass(Interval(math.nan, math.nan, math.nan), math.nan)
        value, kept, certain = self.value[ids], self.kept[ids], self.certain[ids]
        top = float(value.max())
        weight = np.exp(value - top)
        total = float(weight.sum())
        spread = float(weight @ (self.error[ids] + ROUNDING * (top - value))) / total
        error = spread + sum_error(len(ids)) + 2.0 * ROUNDING
        value_of, low_of, high_of = (
            top + _log(float(weight[part].sum())) for part in (kept, certain, slice(None))
        )
        error += ROUNDING * abs(high_of - top)
        return LogMass(Interval(value_of, low_of - error, high_of + error), top)


@dataclass(frozen=True)
class LogMass:
    """A row's log-sum-exp and its largest logit."""

    interval: Interval
    top: float

    def logprob(self, logit: Interval) -> Interval:
        """`logit - mass`, whichever way the two are subtracted."""
        size = sum(abs(x) for x in (logit.value, self.interval.value) if math.isfinite(x))
        return logit.minus(self.interval, ROUNDING * size)

    def logprobs(self, row: Row) -> Scores:
        """The same of each token of the row."""
        mass = self.interval
        size = np.abs(row.value) + abs(mass.value)
        minus = Interval(-mass.value, -mass.high, -mass.low)
        return row.scores().plus(minus, ROUNDING * np.where(np.isfinite(size), size, 0.0))


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf
