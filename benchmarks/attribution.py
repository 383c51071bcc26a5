"""Prints the confusion matrix of attribution over seeded histories.

    python -m benchmarks.attribution [--histories 200] [--pairs 8]

Every history is a series of interleaved runs of base and head with a known cause: a new failure
(steady, flaky, or hidden behind another failure that base has), one that base has as well, one
that is flaky on both sides alike, one of the environment, and one whose base was never tried.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from ci.attribution import Class, Failure, Observation, Side, attribute, pairs_order

Cause = Literal[
    "new", "new-flaky", "new-behind-another", "pre-existing", "flaky", "environment", "unknown"
]
TRUE_CLASS: dict[Cause, Class] = {
    "new": "new",
    "new-flaky": "new",
    "new-behind-another": "new",
    "pre-existing": "pre-existing",
    "flaky": "flaky",
    "environment": "environment",
    "unknown": "unknown",
}
RATES = (0.05, 0.5)
FAILURE = Failure("suites/test_a.py::test_a", "mask.membership", "expected a member, found #")
OTHER = Failure("suites/test_a.py::test_a", "collective.order", "rank # issued another call")


def rate(cause: Cause, side: Side, flake: float) -> float:
    """How often the failure shows on a side."""
    if cause in ("pre-existing", "unknown"):
        return 1.0
    if cause == "flaky":
        return flake
    if cause == "new-flaky":
        return flake if side == "head" else 0.0
    return 1.0 if side == "head" else 0.0


def history(cause: Cause, flake: float, pairs: int, rng: random.Random) -> list[Observation]:
    """Draw one history."""
    return [_run(cause, side, flake, rng) for side in pairs_order(pairs)]


def _run(cause: Cause, side: Side, flake: float, rng: random.Random) -> Observation:
    shows = rng.random() < rate(cause, side, flake)
    if cause == "environment":
        return Observation(side, FAILURE.test, tried=not shows, environment=shows)
    if cause == "unknown" and side == "base":
        return Observation(side, FAILURE.test, tried=False)
    hidden = cause == "new-behind-another" and side == "base"
    failures = frozenset({FAILURE} if shows else {OTHER} if hidden else ())
    return Observation(side, FAILURE.test, tried=True, failures=failures)


def confusion(histories: int, pairs: int, seed: int = 0) -> Counter[tuple[Cause, str]]:
    """(true cause, said class) -> how many; `not shown` where head happened not to fail."""
    causes: Sequence[Cause] = get_args(Cause)
    counts: Counter[tuple[Cause, str]] = Counter()
    for number in range(histories):
        rng = random.Random(f"{seed}/{number}")
        cause = causes[number % len(causes)]
        drawn = history(cause, rng.uniform(*RATES), pairs, rng)
        said = [each.cause for each in attribute(drawn) if each.failure != OTHER]
        counts[cause, said[0] if said else "not shown"] += 1
    return counts


def table(counts: Counter[tuple[Cause, str]]) -> str:
    """Return the matrix as text: true causes down, what was said across."""
    said = [*get_args(Class), "not shown"]
    lines = [f"{'true cause':<20}" + "".join(f"{name:>14}" for name in said)]
    lines += [
        f"{cause:<20}" + "".join(f"{counts[cause, name]:>14}" for name in said)
        for cause in get_args(Cause)
    ]
    return "\n".join(lines)


def falsely_pre_existing(counts: Counter[tuple[Cause, str]]) -> int:
    """How many were called `pre-existing` and are not."""
    return sum(
        count
        for (cause, said), count in counts.items()
        if said == "pre-existing" and TRUE_CLASS[cause] != "pre-existing"
    )


def main() -> None:
    """Print the matrix."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=8)
    options = parser.parse_args()
    counts = confusion(options.histories, options.pairs)
    print(f"{options.histories} histories of {options.pairs} pairs, flake rates {RATES}")
    print(table(counts))
    print(f"falsely pre-existing: {falsely_pre_existing(counts)}")


if __name__ == "__main__":
    main()
