"""The reference and vLLM's own sampler agree on calls that hypothesis draws.

`benchmarks/reference_agreement.py` draws thousands, and larger ones.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, settings

from tests.tprig.checkers.reference.conftest import RealSampler
from tests.tprig.checkers.reference.drawn import Wishes, draw
from tests.tprig.checkers.reference.strategies import calls, unexplained
from tprig.checkers.reference import judge_call


@settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(wishes=calls(requests=3, steps=3, vocab_size=100))
def test_vllm_is_judged_right(real: RealSampler, wishes: Wishes) -> None:
    drawn = draw(wishes)
    judgement = judge_call(drawn.call, real(drawn))
    assert unexplained(drawn.call, judgement) == []
    assert sum(judgement.judged.values()) > 0
