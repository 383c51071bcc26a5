"""Temporary folders that are long, hold odd characters, or are somebody else's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tprig.engine.bench import Bench, left, order
from tprig.remains import runtime_root

ODD = ["a b'ü\"", "a#b?c%20d", "x" * 60]


@pytest.fixture
def place() -> Iterator[Path]:
    # Not pytest's own folder, which is too long for sockets.
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_an_engine_lives_in_a_temporary_folder_of_any_name(
    bench: Bench, place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    base = place / name
    base.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    # TP2 in a core of its own uses every kind of socket and file there is.
    engine = bench.started(2, core_process=True)
    assert engine.processes.footprint.runtime.parent == runtime_root()
    assert engine.run(order("r")).complete
    engine.stop()
    assert left(engine) == []
    assert not any(path.is_file() or path.is_socket() for path in base.rglob("*"))
