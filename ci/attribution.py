"""Which failures a change caused, and which it found: decided from interleaved runs. Pure.

A failure is known by its test, its anomaly and its signature, so that another failure of the same
test passes for none of these. Runs in which the test was not really tried (no devices, no disk)
count for neither side.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ci import codes
from tprig.bundle.files import printable

Side = Literal["base", "head"]
Class = Literal["new", "pre-existing", "flaky", "environment", "unknown"]

ALPHA = 0.05
"""Of the one-sided Fisher test, that head fails more often than base."""

STEADY_RATE, STEADY_ALPHA = 0.5, 0.001
"""A failure is steady when all runs show it, and a failure rate of `STEADY_RATE` or less would do
so with a probability of at most `STEADY_ALPHA`: from ten runs on."""

ENVIRONMENT = re.compile(
    r"no space left on device|cannot allocate memory|no devices?\b|no such device|lease|quarantine"
    r"|out of memory|uncorrectable ecc|has fallen off the bus|xid|driver/library version mismatch"
    r"|connection (refused|reset)|temporary failure in name resolution|too many open files",
    re.IGNORECASE,
)
"""Words of failures that say nothing of the change."""

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?(e[-+]?\d+)?")
_PLACES = re.compile(r"(/[\w.@+-]+)+/")
SIGNATURE_CHARS = 200


@dataclass(frozen=True, order=True)
class Failure:
    """What a failure is known by.

    Attributes:
        test: pytest's node id.
        anomaly: of the first finding; `test` where no claim failed.
        signature: the message without what changes from run to run.
    """

    test: str
    anomaly: str
    signature: str


@dataclass(frozen=True)
class Observation:
    """One test in one run.

    Attributes:
        side: whose run.
        tried: the test ran to a verdict of its own; else it says nothing.
        failures: what it showed; empty when it passed.
        environment: it failed for want of devices, memory or disk.
    """

    side: Side
    test: str
    tried: bool
    failures: frozenset[Failure] = frozenset()
    environment: bool = False


@dataclass(frozen=True)
class Attribution:
    """What became of one failure that head showed.

    Attributes:
        fisher_p: probability of a split at least so uneven, if base and head failed alike.
    """

    failure: Failure
    cause: Class
    base_failed: int
    base_runs: int
    head_failed: int
    head_runs: int
    fisher_p: float
    reason: str


@dataclass
class _Counts:
    failed: dict[Side, int] = field(default_factory=lambda: {"base": 0, "head": 0})
    runs: dict[Side, int] = field(default_factory=lambda: {"base": 0, "head": 0})


def signature(message: str) -> str:
    """What a failure says, without numbers, addresses and folders.

    Of a traceback as pytest prints it that is the first line of the error, else the last line.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E  ")]
    told = next(iter(errors), lines[-1] if lines else "no message")
    return _NUMBERS.sub("#", _PLACES.sub("", told))[:SIGNATURE_CHARS]


def attribute(observations: Sequence[Observation]) -> list[Attribution]:
    """Classify every failure that head showed, in the order of tests and signatures."""
    shown = {f for each in observations if each.side == "head" for f in each.failures}
    return [
        *(_classified(failure, _counted(failure, observations)) for failure in sorted(shown)),
        *_of_environment(observations),
    ]


def _counted(failure: Failure, observations: Iterable[Observation]) -> _Counts:
    counts = _Counts()
    for each in observations:
        if each.test == failure.test and each.tried and not each.environment:
            counts.runs[each.side] += 1
            counts.failed[each.side] += failure in each.failures
    return counts


def _of_environment(observations: Sequence[Observation]) -> Iterator[Attribution]:
    """Tests that failed on head for want of something, once each."""
    mine = [each for each in observations if each.environment and each.side == "head"]
    for test in sorted({each.test for each in mine}):
        of_test = [each for each in observations if each.test == test]
        base = [each for each in of_test if each.side == "base"]
        head = [each for each in of_test if each.side == "head"]
        yield Attribution(
            failure=Failure(test, "environment", "-"),
            cause="environment",
            base_failed=sum(each.environment for each in base),
            base_runs=len(base),
            head_failed=sum(each.environment for each in head),
            head_runs=len(head),
            fisher_p=1.0,
            reason="it failed for want of devices, memory, disk or network, and was not tried",
        )


def _classified(failure: Failure, counts: _Counts) -> Attribution:
    base, head = counts.failed["base"], counts.failed["head"]
    base_runs, head_runs = counts.runs["base"], counts.runs["head"]
    p = fisher(base, base_runs, head, head_runs)
    cause, reason = _cause(base, base_runs, head, head_runs, p)
    return Attribution(failure, cause, base, base_runs, head, head_runs, p, reason)


def fisher(base: int, base_runs: int, head: int, head_runs: int) -> float:
    """One-sided Fisher probability that head fails so much more often by chance alone."""
    # Given how many failed in all, those of head are hypergeometric. In integers, for three runs of
    # each side give 1/20, which is to be 0.05 and no rounding more.
    failed, runs = base + head, base_runs + head_runs
    ways = sum(
        math.comb(failed, k) * math.comb(runs - failed, head_runs - k)
        for k in range(head, min(failed, head_runs) + 1)
    )
    return ways / math.comb(runs, head_runs)


def _cause(base: int, base_runs: int, head: int, head_runs: int, p: float) -> tuple[Class, str]:
    runs = base_runs + head_runs
    if base_runs == 0:
        return "unknown", "base was never tried: nothing to compare with"
    if base == 0:
        return _of_head_alone(p)
    if base + head < runs and p <= ALPHA:
        return "unknown", f"base shows it too, but head more often: p = {p:.2g}"
    if base + head < runs:
        return "flaky", "both show it, and some runs do not"
    if STEADY_RATE**runs <= STEADY_ALPHA:
        return "pre-existing", f"each of {base_runs} runs of base showed the same"
    return "unknown", f"both always show it, but {runs} runs do not tell a flaky one: run more"


def _of_head_alone(p: float) -> tuple[Class, str]:
    if p <= ALPHA:
        return "new", f"base never showed it, and chance alone would do so with p = {p:.2g}"
    return "unknown", f"base did not show it, but so few runs leave p = {p:.2g}: run more"


def pairs_order(pairs: int) -> list[Side]:
    """Which side runs when: base head, head base, ..., so that a drift harms both alike."""
    order: list[Side] = []
    for number in range(pairs):
        order += ["base", "head"] if number % 2 == 0 else ["head", "base"]
    return order


def report(said: Sequence[Attribution]) -> str:
    """Return a line of counts for each failure, and why it is called what it is called."""
    if not said:
        return "head showed no failure"
    lines = []
    for each in said:
        failure = each.failure
        lines += [
            f"{each.cause}: {printable(failure.test)}: {failure.anomaly}",
            f"  {printable(failure.signature)}",
            f"  base {each.base_failed} of {each.base_runs}, head {each.head_failed} of "
            f"{each.head_runs}, Fisher p = {each.fisher_p:.3g}: {each.reason}",
        ]
    return "\n".join(lines)


def exit_code(said: Sequence[Attribution]) -> int:
    """1 for anything new, 2 where something is left open, else 0."""
    causes = {each.cause for each in said}
    if "new" in causes:
        return codes.FAIL
    return codes.UNKNOWN if causes & {"unknown", "environment"} else codes.PASS
