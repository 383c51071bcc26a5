"""The exit codes of `python -m ci`, and what pytest's mean to it."""

from __future__ import annotations

from typing import Literal

Standing = Literal["pass", "fail", "unknown"]

PASS, FAIL, UNKNOWN, USAGE = 0, 1, 2, 4
TIMED_OUT = 124
"""The inner watchdog ended the step; the evidence up to then was kept."""

SOFT = 79
"""The one code that Buildkite may take softly: a step ended in order and decided nothing.

The summary step, which nothing softens, then says `unknown`.
"""

PYTEST_UNKNOWN = 10
"""What pytest returns where a claim of the suites could not be decided."""

EXIT_CODES: dict[Standing, int] = {"pass": PASS, "fail": FAIL, "unknown": UNKNOWN}


def of_step(pytest_status: int) -> int:
    """The exit code of a step whose pytest ended so: 0 stays 0, undecided is `SOFT`.

    A pytest that a signal ended gives 128 and the signal's number, as a shell does.
    """
    if pytest_status == PYTEST_UNKNOWN:
        return SOFT
    return 128 - pytest_status if pytest_status < 0 else pytest_status
