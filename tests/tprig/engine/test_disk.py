"""A full disk under the bundle: a clear message, what was written is kept, nothing runs on."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.tprig.engine.bench import LONG, VOCAB_SIZE, Bench, Witness, left, order
from tprig import evidence
from tprig.bundle import BundleError, load
from tprig.engine import EngineError
from tprig.template import Template

KIB = 1 << 10
SIZE_BYTES = 512 * KIB
FILL_BYTES = 2 * SIZE_BYTES


@pytest.fixture
def small(model: Path, template: Template, tmp_path: Path) -> Iterator[Bench]:
    """A bench on a file system of 512 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, check=False).returncode:
        pytest.skip("a file system can be mounted by root only")
    with Bench(model, template, folder / "bundle") as made:
        yield made
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(bench: Bench) -> None:
    """Leave no room."""
    file = os.open(bench.root.parent / "filler", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="No space left on device"):
        os.posix_fallocate(file, 0, FILL_BYTES)
    for offset_bytes in range(0, FILL_BYTES, KIB):
        with suppress(OSError):
            os.pwrite(file, bytes(KIB), offset_bytes)
    os.close(file)


def test_a_disk_that_is_full_in_the_middle_of_a_run(small: Bench) -> None:
    engine = small.started(2)
    engine.run(order("before"))
    full = False

    def strike(*_: object) -> None:
        nonlocal full
        if not full:
            full = True
            fill(small)

    with Witness(engine.processes.pids()) as witness:
        with pytest.raises(BundleError, match=r"runs/r/outputs\.jsonl .*No space left on device"):
            engine.run(order("r", LONG, VOCAB_SIZE), strike)
        assert not engine.serving
        engine.stop()
        assert witness.living() == []
    assert left(engine) == []
    bundle = load(small.root)
    assert not bundle.damaged
    before = bundle.runs["before"]
    assert before.run is not None
    assert before.run.complete
    assert small.rows("before") == 12
    # The page that these lines lie in was theirs before.
    assert small.names(engine) == ["launching", "ready", "signalled", "stopped", "cleaned"]


def test_a_disk_that_is_full_before_an_engine_starts(small: Bench) -> None:
    engine = small.engine()
    fill(small)
    with pytest.raises(EngineError, match=r"refused: OSError: .*No space left on device"):
        engine.start()
    assert not engine.serving
    engine.stop()
    assert left(engine) == []


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """This process writes no larger file: the kernel's answer is as that of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_outputs_that_cannot_all_be_written(bench: Bench) -> None:
    """As a full disk, without the right to mount one."""
    engine = bench.started()
    with (
        largest_file(128 * KIB),
        Witness(engine.processes.pids()) as witness,
    ):
        with pytest.raises(BundleError, match=r"runs/r/outputs\.jsonl .*File too large"):
            engine.run(order("r", LONG, VOCAB_SIZE))
        engine.stop()
        assert witness.living() == []
    assert left(engine) == []
    assert bench.names(engine) == ["launching", "ready", "signalled", "stopped", "cleaned"]
    history = bench.history("r")
    assert history.run is not None
    assert not history.run.complete
    assert history.outputs is not None
    assert history.outputs.records != ()
    assert not history.outputs.complete
    assert all(isinstance(record, evidence.Emission) for record in history.outputs.records)


def test_what_cannot_be_written_does_not_keep_an_engine_alive(bench: Bench) -> None:
    engine = bench.started(2)
    with largest_file(1), Witness(engine.processes.pids()) as witness:
        with pytest.raises(BundleError, match=r"events\.jsonl .*File too large"):
            engine.stop()
        assert witness.living() == []
    assert left(engine) == []
    assert bench.names(engine) == ["launching", "ready"]
