"""Captured calls in a bundle: loaded whole, and refused where they are not what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.fakes import bundles, oracles
from tprig.bundle import Bundle, load, seal
from tprig.bundle.records import MalformedError
from tprig.bundle.tensors import read_tensors
from tprig.checkers.verdict import judge_claim

CALL = oracles.captured().id
TENSORS = f"oracles/{CALL}/tensors.safetensors"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return oracles.write(tmp_path / "bundle")


def resealed(root: Path) -> Bundle:
    seal(root)
    return load(root)


def test_calls_and_replays_come_back_as_they_were_written(root: Path) -> None:
    bundle = load(root)
    assert bundle.problems == ()
    run = bundle.runs[oracles.RUN]
    assert list(run.calls) == [CALL]
    assert run.calls[CALL].call == oracles.captured().call
    expected = oracles.captured().tensors()
    found = run.calls[CALL].tensors()
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape)
        assert array.tobytes() == np.ascontiguousarray(expected[name]).tobytes()
    (replay,) = run.replays
    assert replay.outputs(oracles.KEPT).keys() == oracles.mask().keys()
    verdict = judge_claim(oracles.claim(), bundle.runs)
    assert (verdict.verdict, verdict.measured["exact"]) == ("pass", 1)


def test_a_bundle_without_captured_calls_has_none(tmp_path: Path) -> None:
    bundle = load(bundles.pair(tmp_path / "bundle"))
    assert (bundle.problems, dict(bundle.calls), bundle.replays) == ((), {}, ())


def test_a_call_that_is_not_there_leaves_the_claim_open(root: Path) -> None:
    for name in ("call.json", "tensors.safetensors"):
        (root / "oracles" / CALL / name).unlink()
    verdict = judge_claim(oracles.claim(), resealed(root).runs)
    assert verdict.verdict == "unknown"
    assert f"captured call {CALL} is not stored" in verdict.reason


def test_what_a_dying_worker_left_is_no_damage(root: Path) -> None:
    left = root / "oracles" / f".{'0' * 32}.123"
    left.mkdir()
    (left / "tensors.safetensors").write_bytes(b"half of")
    bundle = resealed(root)
    assert bundle.problems == ()
    assert list(bundle.calls) == [CALL]


def with_tensors(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def alter(root: Path) -> None:
        tensors = load_file(root / TENSORS)
        change(tensors)
        (root / TENSORS).unlink()
        save_file(tensors, root / TENSORS)

    return alter


def with_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def alter(root: Path) -> None:
        (root / TENSORS).write_bytes(change((root / TENSORS).read_bytes()))

    return alter


def _other_folder(root: Path) -> None:
    (root / "oracles" / CALL).rename(root / "oracles" / "mine")


def _header(value: object) -> Callable[[bytes], bytes]:
    text = json.dumps(value).encode()
    return lambda _: len(text).to_bytes(8, "little") + text


HOSTILE: list[tuple[Callable[[Path], None], str]] = [
    (with_tensors(lambda t: t.pop("seeds")), "holds 'seeds' as None"),
    (with_tensors(lambda t: t.update(more=np.zeros(1))), "holds 'more' as"),
    (with_tensors(lambda t: t.update(seeds=np.zeros(2, dtype=np.int64))), "holds 'seeds' as"),
    (with_tensors(lambda t: t.update(seeds=np.zeros(1, dtype=np.int32))), "holds 'seeds' as"),
    (with_bytes(lambda _: b""), "has a header of 0 bytes"),
    (with_bytes(lambda _: b"\xff" * 64), "has a header of"),
    (with_bytes(lambda data: data[:8] + b"[" + data[9:]), "has no header in the format"),
    (with_bytes(_header({"seeds": {"dtype": "I64"}})), "has no header in the format"),
    (with_bytes(_header({"seeds": {"dtype": 1, "shape": [1], "data_offsets": [0, 8]}})), "header"),
    (_other_folder, "is no captured call: its name is no digest"),
]


@pytest.mark.parametrize(("alter", "words"), HOSTILE)
def test_what_is_not_what_it_says_is_damaged(
    root: Path, alter: Callable[[Path], None], words: str
) -> None:
    alter(root)
    bundle = resealed(root)
    assert bundle.damaged
    assert any(words in problem.message for problem in bundle.problems)


def test_data_that_is_cut_is_never_handed_on(root: Path) -> None:
    """The header alone is read with the bundle; the rest when it is asked for."""
    data = (root / TENSORS).read_bytes()
    (root / TENSORS).write_bytes(data[:-8])
    bundle = resealed(root)
    with pytest.raises(MalformedError, match="not in the format of safetensors"):
        bundle.runs[oracles.RUN].calls[CALL].tensors()
    verdict = judge_claim(oracles.claim(), bundle.runs)
    assert verdict.verdict == "unknown"


def test_tensors_are_read_by_their_own_types(tmp_path: Path) -> None:
    arrays = {
        "f16": np.array([1.5, -2.0], dtype=np.float16),
        "bool": np.array([True, False]),
        "u8": np.arange(3, dtype=np.uint8),
        "empty": np.zeros((0, 4), dtype=np.int32),
    }
    save_file(arrays, tmp_path / "t.safetensors")
    found = read_tensors(tmp_path, "t.safetensors")
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
        assert found[name].shape == array.shape
