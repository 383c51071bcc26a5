"""How often the NumPy reference and vLLM's own sampler agree on calls that hypothesis draws.

    python benchmarks/reference_agreement.py [--calls 2000] [--seed 0] [--workers 2]

1 to 16 requests, 1 to 7 speculative steps, vocabularies of 17 to 9,000, ties, masked rows, extreme
temperatures, both kinds of drafts, all verification methods. vLLM runs on the CPU in Triton's
interpreter, once per worker: each draws a part of the calls from a seed of its own. Prints what was
compared, how many outcomes float32 leaves open, and each disagreement; the first one of a worker
that is not a known fault of vLLM is shrunk, printed, and ends it 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.tprig.checkers.reference.conftest import RealSampler
from tests.tprig.checkers.reference.drawn import Wishes, draw
from tests.tprig.checkers.reference.strategies import calls, unexplained
from tprig.checkers.reference import judge_call

LEAST_DRAWS = 50
COUNTED = ("judged", "ambiguous", "differing", "known", "undecided")


@dataclass
class Agreement:
    """Counts over all calls so far."""

    vllm_version: object = None
    distinct: set[Wishes] = field(default_factory=set)
    judged: Counter[str] = field(default_factory=Counter)
    ambiguous: Counter[str] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    undecided: Counter[str] = field(default_factory=Counter)
    vllm_s: float = 0.0
    reference_s: float = 0.0
    disagreements: list[str] = field(default_factory=list)

    def compare(self, real: RealSampler, wishes: Wishes) -> None:
        """Judge one call of vLLM's.

        Raises:
            AssertionError: the two disagree, and neither float32 nor a known fault explains it.
        """
        drawn = draw(wishes)
        began = time.perf_counter()
        result = real(drawn)
        ran = time.perf_counter()
        judgement = judge_call(drawn.call, result)
        self.vllm_s += ran - began
        self.reference_s += time.perf_counter() - ran
        self.distinct.add(wishes)
        self.judged.update({what.value: n for what, n in judgement.judged.items()})
        self.ambiguous.update({what.value: n for what, n in judgement.ambiguous.items() if n})
        self.undecided.update(reason.partition(": ")[2] for reason in judgement.undecided)
        self.differing.update(each.what.value for each in judgement.discrepancies if each.ambiguous)
        failures = unexplained(drawn.call, judgement)
        self.known.update(each.what.value for each in judgement.failures if each not in failures)
        assert not failures, "\n".join(map(str, [wishes, *failures]))
        if len(self.distinct) % 100 == 0:
            print(f"{len(self.distinct)} calls", flush=True)

    def show(self) -> None:
        """Print the counts."""
        print(f"vLLM {self.vllm_version}: {len(self.distinct)} distinct calls")
        print(f"compared: {dict(self.judged)}")
        print(f"of these float32 leaves open: {dict(self.ambiguous)}")
        print(f"of these vLLM decided otherwise, within the band: {dict(self.differing)}")
        print(f"known faults of vLLM: {dict(self.known)}")
        print(f"requests not judged: {dict(self.undecided)}")
        print(f"vLLM took {self.vllm_s:.1f} s, the reference {self.reference_s:.1f} s")
        for error in self.disagreements:
            print(f"the smallest call on which they disagree:\n{error}")


def agreement(calls_wanted: int, drawn_from: int) -> Agreement:
    """Draw so many different calls from a seed, and compare them, up to the first disagreement."""
    found = Agreement()
    with tempfile.TemporaryDirectory() as folder, RealSampler(Path(folder) / "log") as real:
        found.vllm_version = real.vllm_version
        try:
            # hypothesis draws some calls more than once, and the simplest one in every round.
            for again in count():
                missing = calls_wanted - len(found.distinct)
                if missing <= 0:
                    break
                draws(found, real, max(missing, LEAST_DRAWS), f"{drawn_from} {again}")
        except AssertionError as error:
            found.disagreements.append(str(error))
        except KeyboardInterrupt:
            print("interrupted")
    return found


def draws(found: Agreement, real: RealSampler, most: int, drawn_from: str) -> None:
    """Draw at most so many calls, and compare them.

    Raises:
        AssertionError: at the first disagreement, shrunk.
    """

    @seed(drawn_from)
    @settings(
        max_examples=most,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(wishes=calls(requests=16, steps=7, vocab_size=9000))
    def compare(wishes: Wishes) -> None:
        found.compare(real, wishes)

    compare()


def together(parts: Sequence[Agreement]) -> Agreement:
    """The counts of all workers."""
    whole = Agreement(parts[0].vllm_version)
    for part in parts:
        whole.distinct |= part.distinct
        for name in COUNTED:
            getattr(whole, name).update(getattr(part, name))
        whole.vllm_s += part.vllm_s
        whole.reference_s += part.reference_s
        whole.disagreements += part.disagreements
    return whole


def main() -> int:
    """Draw, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    workers = options.workers
    share = partial(agreement, -(-options.calls // workers))
    seeds = range(options.seed * workers, (options.seed + 1) * workers)
    with ProcessPoolExecutor(workers) as pool:
        found = together(list(pool.map(share, seeds)))
    found.show()
    return 1 if found.disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
