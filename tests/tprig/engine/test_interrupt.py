"""A run of the suites that is interrupted: Ctrl-C, and SIGTERM, in the middle of a run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.tprig.engine.bench import PATIENCE_S, Witness
from tprig.template import Template

ROOT = Path(__file__).parents[3]
SERVES_S = 300.0
COMMAND = ("-m", "tp1", "-k", "greedy-base", "--tprig-profile", "smoke", "--tprig-platform", "cpu")


class Suite:
    """A run of the suites, as in a terminal of its own, in a place of its own."""

    def __init__(self, bundle: Path) -> None:
        self.bundle = bundle
        # Short: a long one would not be taken for sockets.
        self.place = Path(tempfile.mkdtemp(prefix="int"))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *COMMAND, "--tprig-bundle-dir", str(bundle)],
            cwd=ROOT,
            env=os.environ
            | {"TMPDIR": str(self.place), "TPRIG_LOCK_DIR": str(self.place / "locks")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def serving(self) -> Witness:
        """Wait until an engine is in the middle of a run; who runs then."""
        deadline_s = time.monotonic() + SERVES_S
        while not any(self._lines(path) > 1 for path in self.bundle.glob("runs/*/ranks/*")):
            assert time.monotonic() < deadline_s, self.text()
            assert self.process.poll() is None, self.text()
            time.sleep(0.05)
        children = psutil.Process(self.process.pid).children(recursive=True)
        return Witness(child.pid for child in children)

    def _lines(self, path: Path) -> int:
        return path.read_bytes().count(b"\n")

    def text(self) -> str:
        """All that it printed; it must have ended."""
        self.process.kill()
        return self.process.communicate()[0].decode()

    def check(self) -> int:
        """What `tprig check` says of its bundle."""
        command = [sys.executable, "-m", "tprig", "check", str(self.bundle)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode

    def runtime_folders(self) -> list[Path]:
        return list(self.place.glob("tprig-*/*"))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        shutil.rmtree(self.place, ignore_errors=True)


@pytest.fixture(scope="module")
def suites(
    template: Template, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Suite, Suite]]:
    """Two of them, started side by side: importing vLLM is what takes time."""
    del template  # skips where there is no vLLM
    started = tuple(Suite(tmp_path_factory.mktemp("suite") / "bundle") for _ in range(2))
    yield started[0], started[1]
    for suite in started:
        suite.close()


def test_ctrl_c_ends_a_run_with_its_evidence_sealed(suites: tuple[Suite, Suite]) -> None:
    suite = suites[0]
    with suite.serving() as witness:
        assert len(witness.pids) >= 4  # two engines, the template, the warden
        os.killpg(suite.process.pid, signal.SIGINT)
        text = suite.process.communicate(timeout=PATIENCE_S)[0].decode()
        assert suite.process.returncode == 2, text
        assert witness.living(PATIENCE_S) == []
    assert suite.runtime_folders() == []
    assert "KeyboardInterrupt" in text
    assert (suite.bundle / "manifest.json").is_file(), text
    assert "engine.crash" not in text
    assert suite.check() == 2


def test_sigterm_leaves_nothing_running(suites: tuple[Suite, Suite]) -> None:
    suite = suites[1]
    with suite.serving() as witness:
        suite.process.send_signal(signal.SIGTERM)
        suite.process.communicate(timeout=PATIENCE_S)
        assert witness.living(PATIENCE_S) == []
    assert suite.process.returncode != 0
    assert suite.runtime_folders() == []
    assert suite.check() == 2
