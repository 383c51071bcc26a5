"""How long the NumPy reference takes to judge one large call, and how much memory that needs.

    python benchmarks/reference_speed.py [--vocab-size 152064] [--requests 64] [--steps 3]

The call is made up, and so is its result: the reference's own decisions, with processed logits and
supports, as a capture would hold them. Top-k, top-p and penalties apply to every request, drafts
are probabilistic. Prints the seconds that building and judging took, and the peak memory of the
process; ends 1 when the made-up result is not judged sound.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.tprig.checkers.reference.drawn import Wishes, draw
from tests.tprig.checkers.reference.sound import sound_result
from tprig.checkers.reference import judge_call


def main() -> int:
    """Make, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab-size", type=int, default=152_064)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    began = time.perf_counter()
    call = draw(
        Wishes(
            requests=options.requests,
            steps=options.steps,
            vocab_size=options.vocab_size,
            drafts="near",
            features=frozenset({"top_k", "top_p", "penalties", "replay"}),
        )
    ).call
    result = sound_result(call)
    print(f"made in {time.perf_counter() - began:.1f} s")
    print(f"{call.logits.nbytes / 1e6:.0f} MB of logits {call.logits.shape}")

    began, used = time.perf_counter(), time.process_time()
    judgement = judge_call(call, result)
    print(
        f"judged in {time.perf_counter() - began:.1f} s, {time.process_time() - used:.1f} s of CPU"
    )
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak memory of the process {peak_bytes / 1e9:.2f} GB")
    print({what.value: n for what, n in judgement.judged.items()})
    for each in judgement.failures:
        print(each)
    return 1 if judgement.failures or judgement.undecided else 0


if __name__ == "__main__":
    sys.exit(main())
