"""The storm's witness is worth something: it sees what locks prevent."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import leases
from benchmarks.storm import Witness

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "leases.py"


def storm(*words: str) -> tuple[int, str]:
    """Exit code and output of a small storm in which nobody is killed."""
    command = [sys.executable, str(SCRIPT), "--only=storm", "--grants=40", *words]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return found.returncode, found.stdout


def test_storm_without_locks_is_seen_by_the_witness() -> None:
    code, output = storm("--without-locks")
    assert code == 1
    found = re.search(r"(\d+) double grants", output)
    assert found is not None
    assert int(found[1]) > 0
    assert output.splitlines()[-1].startswith("leases: missed: storm: double grants")


def test_storm_with_locks_shows_the_witness_nothing() -> None:
    code, output = storm()
    assert "0 double grants, 0 lost devices, 0 failed workers" in output
    assert output.splitlines()[-1] == "leases: all bounds held"
    assert code == 0


def test_witness_accuses_a_holder_that_lives(tmp_path: Path) -> None:
    first = Witness(tmp_path)
    first.enter("GPU-1")
    # The same process stands for another one that lives.
    first.enter("GPU-1")
    assert "lives and held it too" in (tmp_path / "accusations").read_text()


def test_witness_takes_over_from_the_dead(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    (tmp_path / "held-GPU-1").write_text(str(dead.pid))
    witness = Witness(tmp_path)
    witness.enter("GPU-1")
    witness.leave("GPU-1")
    assert not (tmp_path / "accusations").exists()
    assert not (tmp_path / "held-GPU-1").exists()


def test_witness_accuses_whoever_took_a_held_device(tmp_path: Path) -> None:
    witness = Witness(tmp_path)
    witness.enter("GPU-1")
    (tmp_path / "held-GPU-1").write_text("1")
    witness.leave("GPU-1")
    assert "found 1" in (tmp_path / "accusations").read_text()


@pytest.mark.parametrize(("count", "p99"), [(1, 0.0), (100, 98.0), (200, 197.0)])
def test_percentile_is_the_nearest_rank(count: int, p99: float) -> None:
    assert leases.percentile([float(n) for n in reversed(range(count))], 99) == p99
