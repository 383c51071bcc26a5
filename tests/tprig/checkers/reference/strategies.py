"""What hypothesis draws calls from, and which disagreements with vLLM are known to be vLLM's."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.tprig.checkers.reference.drawn import FEATURES, TEMPERATURES, Wishes
from tprig.checkers.reference import (
    Discrepancy,
    Judgement,
    LogprobsMode,
    SamplerCall,
    Subject,
    TieRule,
    Verification,
)

RANK_BLOCK = 8192
"""vLLM counts ranks in blocks of this size."""


def calls(*, requests: int, steps: int, vocab_size: int) -> st.SearchStrategy[Wishes]:
    """Calls up to these sizes, with the tie rule of either of vLLM's paths."""
    sizes = {
        "seed": st.integers(0, 2**32 - 1),
        "requests": _mostly_small(1, 4, requests),
        "steps": _mostly_small(1, 3, steps),
    }
    usual = st.builds(
        Wishes,
        **sizes,
        vocab_size=_mostly_small(17, 300, vocab_size),
        logits=st.sampled_from(
            ["normal", "ties", "mixed", "masked", "neighbours", "peaked", "flat", "void"]
        ),
        drafts=st.sampled_from(["greedy", "near", "far", "same", "narrow"]),
        verification=st.sampled_from(Verification),
        temperature=st.sampled_from(sorted(TEMPERATURES)),
        features=st.frozensets(st.sampled_from(FEATURES)),
        tie_rule=st.just(TieRule.KEEP_ALL),
        logprobs_mode=st.sampled_from(LogprobsMode),
    )
    # Of the Triton path, what it does well: test_findings.py has the rest.
    triton = st.builds(
        Wishes,
        **sizes,
        vocab_size=st.integers(64, max(100, min(300, vocab_size))),
        logits=st.sampled_from(["normal", "ties"]),
        drafts=st.sampled_from(["greedy", "near"]),
        temperature=st.just("plain"),
        features=st.frozensets(
            st.sampled_from(["top_k", "top_p", "penalties", "replay", "short", "chunks"])
        ),
        tie_rule=st.just(TieRule.EXACTLY_K),
    )
    return st.one_of(usual, usual, usual, triton)


def _mostly_small(least: int, usual: int, most: int) -> st.SearchStrategy[int]:
    """vLLM's time in the interpreter grows with each size: most calls are small in most of them."""
    small = st.integers(least, min(usual, most))
    return st.one_of(small, small, st.integers(least, most))


def unexplained(call: SamplerCall, judgement: Judgement) -> list[Discrepancy]:
    """Failures, but for the ranks of masked tokens, which vLLM gives beyond the vocabulary."""
    return [each for each in judgement.failures if not _masked_rank(call, each)]


def _masked_rank(call: SamplerCall, found: Discrepancy) -> bool:
    padded = -(-call.vocab_size // RANK_BLOCK) * RANK_BLOCK
    return found.what is Subject.RANKS and (found.expected, found.found) == (
        str(call.vocab_size),
        str(padded),
    )
