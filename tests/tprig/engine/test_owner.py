"""The process that owns an engine is killed: nothing of the engine outlives it for long."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.tprig.engine.bench import PATIENCE_S, Bench, Witness, order
from tprig.remains import SHM, sweep
from tprig.template import Template
from tprig.wire import poll

ROOT = Path(__file__).parents[3]
WARM_S = 300.0


class Told(msgspec.Struct):
    """What the owner says there is to kill."""

    warden: int
    template: int
    engine: list[int]
    runtime: str
    shm_prefix: str

    @property
    def root(self) -> Path:
        """Where the owner's engines have their folders."""
        return Path(self.runtime).parent

    def left(self) -> list[Path]:
        """What of it lies around."""
        runtime = Path(self.runtime)
        folder = [runtime] if runtime.exists() else []
        return [*folder, *SHM.glob(f"*{self.shm_prefix}*")]


class Owner:
    """A process of its own with an engine, in a place of its own."""

    def __init__(self, model: Path, folder: Path) -> None:
        # Short: a long one would not be taken for sockets.
        self.place = Path(tempfile.mkdtemp(prefix="own"))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.tprig.engine.owner", str(model), str(folder)],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(self.place)},
            stdout=subprocess.PIPE,
        )

    def hear(self) -> Told:
        """Wait until it serves."""
        assert self.process.stdout is not None
        assert poll([self.process.stdout.fileno()], WARM_S), "the owner said nothing"
        return msgspec.json.decode(self.process.stdout.readline(), type=Told)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        shutil.rmtree(self.place, ignore_errors=True)


@pytest.fixture(scope="module")
def owners(
    model: Path, template: Template, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Owner]]:
    """Two of them, started side by side: importing vLLM is what takes time."""
    del template  # skips where there is no vLLM
    started = [Owner(model, tmp_path_factory.mktemp("owner")) for _ in range(2)]
    yield started
    for owner in started:
        owner.close()


def test_the_warden_clears_what_a_killed_owner_left(owners: list[Owner]) -> None:
    owner = owners[0]
    told = owner.hear()
    assert told.left() != []
    with Witness([told.warden, told.template, *told.engine]) as witness:
        owner.kill()
        assert witness.living(PATIENCE_S) == []
    assert told.left() == []
    assert list(told.root.iterdir()) == []


def test_the_next_run_clears_what_not_even_the_warden_could(owners: list[Owner]) -> None:
    owner = owners[1]
    told = owner.hear()
    with Witness([told.template, *told.engine]) as witness:
        assert sweep(told.root) == []
        os.kill(told.warden, signal.SIGKILL)
        owner.kill()
        # The kernel ends the template with its owner, and so on down to the workers.
        assert witness.living(PATIENCE_S) == []
    assert told.left() != []
    assert sweep(told.root) == ["e0"]
    assert told.left() == []
    assert sweep(told.root) == []


def test_an_engine_whose_owner_lives_is_left_alone(bench: Bench) -> None:
    engine = bench.started(2)
    script = "from tprig import remains; print(remains.sweep())"
    for command in ([sys.executable, "-c", script], ["setsid", sys.executable, "-c", script]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert engine.id not in done.stdout
    assert engine.id not in sweep()
    assert engine.run(order("r")).complete
    engine.stop()
