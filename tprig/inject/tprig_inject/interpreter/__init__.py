"""Makes the kernels of Model Runner V2 run, and run fast, in Triton's interpreter."""

from __future__ import annotations

from tprig_inject.interpreter import missing, needless


def supply() -> None:
    """Supply what the interpreter lacks, and leave out what it does needlessly.

    The latter makes a step several times faster and changes no result: see `needless` and
    `shortcuts`.
    """
    missing.supply()
    needless.leave_out()
