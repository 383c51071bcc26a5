from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tprig.checkers.reference import noise

SEEDS = st.integers(-(2**63), 2**63 - 1)
POSITIONS = st.integers(0, 2**31 - 1)
WORD = 0xFFFFFFFF


def test_philox_gives_the_published_answer() -> None:
    """Of the known-answer test of Random123 for philox4x32-10 with everything zero."""
    assert noise.philox_4x32(0, 0) == 0x6627E8D5


def test_philox_takes_all_bits_of_seed_and_counter() -> None:
    words = {noise.philox_4x32(1 << bit, 0) for bit in range(64)}
    words |= {noise.philox_4x32(0, 1 << bit) for bit in range(64)}
    assert len(words) == 128


@given(seed=SEEDS, position=POSITIONS)
def test_the_uniform_number_is_a_float32_inside_the_unit_interval(seed: int, position: int) -> None:
    uniform = noise.accept_uniform(seed, position)
    assert 0.0 < uniform < 1.0
    assert float(np.float32(uniform)) == uniform


def murmur3(data: bytes, state: int) -> int:
    """MurmurHash3_x86_32 of whole words, byte by byte."""
    for offset in range(0, len(data), 4):
        key = int.from_bytes(data[offset : offset + 4], "little") * 0xCC9E2D51 & WORD
        key = (key << 15 | key >> 17) & WORD
        state ^= key * 0x1B873593 & WORD
        state = (state << 13 | state >> 19) & WORD
        state = state * 5 + 0xE6546B64 & WORD
    state ^= len(data)
    for factor, shift in ((0x85EBCA6B, 16), (0xC2B2AE35, 13), (1, 16)):
        state = (state ^ state >> shift) * factor & WORD
    return state


def test_the_spelt_out_hash_gives_a_published_answer() -> None:
    assert murmur3(b"test", 0) == 0xBA6BD213


@given(seed=SEEDS, position=POSITIONS, start=st.sampled_from([0, 0x9E3779B9]))
def test_the_hash_is_murmur3_of_seed_position_and_token(
    seed: int, position: int, start: int
) -> None:
    tokens = np.array([0, 1, 77, 151_935], dtype=np.uint32)
    expected = [murmur3(struct.pack("<qII", seed, position, t), start) for t in tokens.tolist()]
    assert noise.murmur3_32(seed, position, tokens, start).tolist() == expected


@pytest.mark.parametrize("fp64", [False, True])
def test_the_noise_is_gumbel_distributed(fp64: bool) -> None:  # noqa: FBT001
    drawn = noise.gumbel(12345, 678, 200_000, fp64=fp64)
    assert drawn.mean() == pytest.approx(0.5772, abs=0.01)
    assert drawn.var() == pytest.approx(math.pi**2 / 6.0, rel=0.02)
    for quantile in (-1.0, 0.0, 1.0, 4.0):
        assert (drawn <= quantile).mean() == pytest.approx(math.exp(-math.exp(-quantile)), abs=5e-3)


def test_the_noise_of_a_token_does_not_depend_on_the_vocabulary() -> None:
    wide, narrow = noise.gumbel(3, 4, 1000), noise.gumbel(3, 4, 10)
    assert wide[:10].tolist() == narrow.tolist()


def test_float32_noise_lies_within_its_band() -> None:
    """The same formula in float32, as a GPU without fast mathematics would compute it."""
    hashed = noise.murmur3_32(9, 9, np.arange(100_000, dtype=np.uint32))
    u = ((hashed.astype(np.float64) + 0.5) * 2.0**-32).astype(np.float32)
    series = np.full_like(u, np.float32(1 / 8))
    for order in range(7, 0, -1):
        series = np.float32(1 / order) + u * series
    direct = np.log(np.maximum(np.float32(1.0) - u, np.float32(2.0**-24)))
    small = -np.log(-np.where(u < np.float32(0.25), -u * series, direct))
    drawn = noise.gumbel(9, 9, 100_000)
    assert small.dtype == np.float32
    assert (np.abs(small.astype(np.float64) - drawn) <= noise.gumbel_band(drawn)).all()
