"""The workloads of a measurement: alike requests, so that what differs between runs is time.

`c16` and `c64` keep 16 and 64 requests running. Every request ends by its number of tokens, asks
for no logprobs, and has a seed of its own, so that two arms do the same work.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from tprig.evidence import Request, Sampling, Workload
from tprig.spec import Platform


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How much is asked for.

    Attributes:
        requests: in all; those beyond `concurrent` wait for a place.
        concurrent: sequences that the engine may run at once.
        max_tokens: output tokens of each.
        prompt_tokens: shortest and longest prompt.
    """

    requests: int
    concurrent: int
    max_tokens: int
    prompt_tokens: tuple[int, int]

    @property
    def max_model_len(self) -> int:
        """What the engine must hold of one request; a whole number of KV blocks of 32."""
        return -(-(self.prompt_tokens[1] + self.max_tokens + 8) // 32) * 32


SHAPES: Mapping[Platform, Mapping[str, Shape]] = {
    # Seconds each, in Triton's interpreter.
    "cpu": {
        "smoke": Shape(requests=4, concurrent=4, max_tokens=8, prompt_tokens=(4, 24)),
        "c16": Shape(requests=24, concurrent=16, max_tokens=12, prompt_tokens=(4, 40)),
        "c64": Shape(requests=80, concurrent=64, max_tokens=8, prompt_tokens=(4, 40)),
    },
    "cuda": {
        "smoke": Shape(requests=8, concurrent=8, max_tokens=32, prompt_tokens=(16, 64)),
        "c16": Shape(requests=64, concurrent=16, max_tokens=128, prompt_tokens=(32, 256)),
        "c64": Shape(requests=256, concurrent=64, max_tokens=128, prompt_tokens=(32, 256)),
    },
}
TEMPERATURE, TOP_K = 0.7, 50


def workload(platform: Platform, shape: str, seed: int, vocab_size: int) -> Workload:
    """The requests of a shape; they arrive at once.

    Args:
        platform: decides how long they are.
        shape: a key of `SHAPES[platform]`.
        seed: decides everything that is drawn.
        vocab_size: tokens are drawn from `[2, vocab_size)`; the first two are left to BOS and EOS.
    """
    size = SHAPES[platform][shape]
    rng = random.Random(f"ab/{platform}/{shape}/{seed}/{vocab_size}")
    requests = [
        Request(
            id=f"{index:03d}",
            prompt_token_ids=[
                rng.randrange(2, vocab_size) for _ in range(rng.randint(*size.prompt_tokens))
            ],
            arrival_step=0,
            sampling=Sampling(
                temperature=TEMPERATURE,
                top_k=TOP_K,
                max_tokens=size.max_tokens,
                seed=rng.getrandbits(31),
            ),
        )
        for index in range(size.requests)
    ]
    profile = f"{shape}-{platform}"
    return Workload(profile=profile, seed=seed, vocab_size=vocab_size, requests=requests)
