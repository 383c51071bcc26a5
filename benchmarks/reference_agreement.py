"""How often the NumPy reference and vLLM's own sampler agree on calls that hypothesis draws.

    python benchmarks/reference_agreement.py [--calls 2000] [--seed 0]

1 to 16 requests, 1 to 7 speculative steps, vocabularies of 17 to 9,000, ties, masked rows, extreme
temperatures, both kinds of drafts, all verification methods. vLLM runs on the CPU in Triton's
interpreter. Prints what was compared, how many outcomes float32 leaves open, and each
disagreement; the first one that is not a known fault of vLLM is shrunk, printed, and ends it 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.tprig.checkers.reference.conftest import RealSampler
from tests.tprig.checkers.reference.drawn import Wishes, draw
from tests.tprig.checkers.reference.strategies import calls, unexplained
from tprig.checkers.reference import judge_call


class Agreement:
    """Counts over all calls so far."""

    def __init__(self, real: RealSampler) -> None:
        self.real = real
        self.distinct: set[Wishes] = set()
        self.judged: Counter[str] = Counter()
        self.ambiguous: Counter[str] = Counter()
        self.differing: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self.undecided: Counter[str] = Counter()
        self.vllm_s = self.reference_s = 0.0

    def compare(self, wishes: Wishes) -> None:
        """Judge one call of vLLM's.

        Raises:
            AssertionError: the two disagree, and neither float32 nor a known fault explains it.
        """
        drawn = draw(wishes)
        began = time.perf_counter()
        result = self.real(drawn)
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
        print(f"vLLM {self.real.vllm_version}: {len(self.distinct)} distinct calls")
        print(f"compared: {dict(self.judged)}")
        print(f"of these float32 leaves open: {dict(self.ambiguous)}")
        print(f"of these vLLM decided otherwise, within the band: {dict(self.differing)}")
        print(f"known faults of vLLM: {dict(self.known)}")
        print(f"requests not judged: {dict(self.undecided)}")
        print(f"vLLM took {self.vllm_s:.1f} s, the reference {self.reference_s:.1f} s")


def main() -> int:
    """Draw, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder, RealSampler(Path(folder) / "log") as real:
        agreement = Agreement(real)

        @seed(options.seed)
        @settings(
            max_examples=options.calls,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(wishes=calls(requests=16, steps=7, vocab_size=9000))
        def compare(wishes: Wishes) -> None:
            agreement.compare(wishes)

        try:
            compare()
        except AssertionError as error:
            print(f"the smallest call on which they disagree:\n{error}")
            return 1
        except KeyboardInterrupt:
            print("interrupted")
            return 130
        finally:
            agreement.show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
