"""Builders of emitted rows, with the logprobs and the rank that vLLM would give them."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec
import numpy as np

from tprig import evidence

VOCAB_SIZE = 512


def row(
    token: int,
    logprobs: Mapping[int, float],
    *,
    complete: bool = True,
    shown: int | None = None,
) -> evidence.Row:
    """A row that emitted `token`, with the rank that its finite logprobs give it.

    Args:
        token: one of `logprobs`.
        logprobs: every finite token's.
        complete: whether the public output showed that these are all.
        shown: how many of the highest the output holds, beside the emitted one; all by default.
    """
    descending = sorted(logprobs, key=lambda t: (-logprobs[t], t))
    kept = [t for i, t in enumerate(descending) if shown is None or i < shown or t == token]
    finite = evidence.Finite(
        token_ids=kept, logprobs=[logprobs[t] for t in kept], complete=complete
    )
    rank = sum(other >= logprobs[token] for other in logprobs.values())
    return evidence.Row(token_id=token, logprob=logprobs[token], rank=rank, finite=finite)


def log_softmax(logits: Mapping[int, float]) -> dict[int, float]:
    """Processed logprobs as vLLM computes them: in float32, widened."""
    x = np.array(list(logits.values()), dtype=np.float32)
    shifted = x - x.max()
    values = shifted - np.log(np.exp(shifted).sum(dtype=np.float32))
    return dict(zip(logits, map(float, values), strict=True))


def distribution(rng: random.Random, top_k: int) -> dict[int, float]:
    """Logprobs over a support of at least 4 tokens: below, at or (with a tie) above top_k."""
    tie = rng.random() < 0.15
    width = top_k + 1 if tie else rng.choice([top_k, rng.randint(4, top_k)])
    logits = {t: rng.gauss(0, 2) for t in rng.sample(range(VOCAB_SIZE), width)}
    if tie:
        last, before = sorted(logits, key=logits.__getitem__)[:2]
        logits[last] = logits[before]
    return log_softmax(logits)


def nudged(rng: random.Random, old: evidence.Row, nudge: float) -> evidence.Row:
    if old.finite is None:
        return old
    # Tied tokens stay tied, as tokens of equal weights do.
    by_logprob = {
        x: float(np.float32(float(x) + rng.uniform(-0.45, 0.45) * nudge))
        for x in old.finite.logprobs
    }
    moved = {
        t: by_logprob[x] for t, x in zip(old.finite.token_ids, old.finite.logprobs, strict=True)
    }
    finite = msgspec.structs.replace(old.finite, logprobs=[moved[t] for t in old.finite.token_ids])
    return msgspec.structs.replace(old, finite=finite, logprob=moved[old.token_id])
