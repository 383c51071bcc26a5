"""The random numbers of vLLM's sampler, recomputed: hashes of seed, position and token.

Two generators are in use. The accept test of a draft draws one uniform number with Philox-4x32-10
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) as `triton.language.rand`
does: key = seed, counter = position. Recovered and bonus tokens come from the Gumbel-max trick,
whose noise is made from MurmurHash3 (x86, 32 bit) of seed, position and token id.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint32]

_WORD = 0xFFFFFFFF
_SMALLEST_UNIFORM = np.float32(4.6566127342e-10)
"""Triton's scale from 31 random bits to [0, 1), by which vLLM also replaces zero."""

GUMBEL_ERROR = 2.0**-19
"""How far float32 noise may be from the same formula in float64, besides its own rounding.

The noise is -log(s) with s within 2**-21 of its value, relative (a logarithm or a polynomial of
positive terms, and `lg2.approx` on a GPU is good to 2**-22); the outer logarithm adds 2**-22.
"""


def philox_4x32(seed: int, counter: int) -> int:
    """First word of Philox-4x32-10 for a 64-bit key and the low 64 bits of the counter."""
    c0, c1, c2, c3 = counter & _WORD, counter >> 32 & _WORD, 0, 0
    k0, k1 = seed & _WORD, seed >> 32 & _WORD
    for _ in range(10):
        low, high = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (high >> 32) ^ c1 ^ k0, high & _WORD, (low >> 32) ^ c3 ^ k1, low & _WORD
        k0, k1 = k0 + 0x9E3779B9 & _WORD, k1 + 0xBB67AE85 & _WORD
    return c0


def accept_uniform(seed: int, position: int) -> float:
    """The number in (0, 1) that the accept test draws: exactly vLLM's float32."""
    word = philox_4x32(seed, position)
    folded = word if word < 1 << 31 else _WORD - word
    return float(max(np.float32(folded) * _SMALLEST_UNIFORM, _SMALLEST_UNIFORM))


def murmur3_32(seed: int, position: int, token_ids: Words, start: int = 0) -> Words:
    """MurmurHash3 of the 16 bytes (seed, low word of position, token id), for each token.

    Args:
        seed: 64 bits, low word first.
        position: of which the low 32 bits count.
        token_ids: [V]
        start: the hash's own initial value.
    """
    state = start
    for key in (seed & _WORD, seed >> 32 & _WORD, position & _WORD):
        state = _mix(state, key)
    # From here on in arrays, whose products wrap as the hash wants.
    keys = _rotated(token_ids * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    hashed = _rotated(keys ^ np.uint32(state), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    hashed ^= np.uint32(16)
    hashed = (hashed ^ hashed >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    hashed = (hashed ^ hashed >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return hashed ^ hashed >> np.uint32(16)


def _mix(state: int, key: int) -> int:
    key = key * 0xCC9E2D51 & _WORD
    key = (key << 15 | key >> 17) & _WORD
    state ^= key * 0x1B873593 & _WORD
    state = (state << 13 | state >> 19) & _WORD
    return state * 5 + 0xE6546B64 & _WORD


def _rotated(words: Words, bits: int) -> Words:
    return words << np.uint32(bits) | words >> np.uint32(32 - bits)


def gumbel(seed: int, position: int, vocab_size: int, *, fp64: bool = False) -> Reals:
    """[vocab_size] noise that is added to the logits before the argmax.

    The uniform numbers are exactly vLLM's; what is made of them is within `gumbel_band`.
    """
    token_ids = np.arange(vocab_size, dtype=np.uint32)
    low = murmur3_32(seed, position, token_ids)
    if fp64:
        high = murmur3_32(seed, position, token_ids, start=0x9E3779B9).astype(np.uint64)
        uniform = ((high << np.uint64(32) | low) >> np.uint64(11)).astype(np.float64)
        uniform = np.minimum((uniform + 0.5) * 2.0**-53, 1.0 - 2.0**-53)
        return np.asarray(-np.log(-np.log(uniform)))
    uniform = ((low.astype(np.float64) + 0.5) * 2.0**-32).astype(np.float32).astype(np.float64)
    return np.asarray(-np.log(_minus_log1p_of_minus(uniform)))


def _minus_log1p_of_minus(uniform: Reals) -> Reals:
    """-log(1 - u) as vLLM's float32 path defines it: eight terms of the series below a quarter."""
    series = np.full_like(uniform, 1.0 / 8.0)
    for order in range(7, 0, -1):
        series = 1.0 / order + uniform * series
    direct = -np.log(np.maximum(1.0 - uniform, 2.0**-24))
    return np.where(uniform < 0.25, uniform * series, direct)


def gumbel_band(noise: Reals, *, fp64: bool = False) -> Reals:
    """How far each of vLLM's own values may be from `noise`."""
    if fp64:
        return np.full_like(noise, 2.0**-40)
    return GUMBEL_ERROR + np.abs(noise) * 2.0**-22
