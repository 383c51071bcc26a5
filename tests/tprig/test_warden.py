from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tprig import warden
from tprig.warden import Warden
from tprig.wire import poll

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]
OWNER = """
import sys, time
from tprig.remains import Footprint
from tprig.warden import Warden
warden = Warden()
footprint = Footprint("e1")
(footprint.runtime / "file").touch()
print(warden.pid, footprint.runtime, flush=True)
sys.stdin.read()
if sys.argv[1] == "dismiss":
    warden.dismiss()
"""


class Owner:
    """A process with a warden and an engine's footprint, in a place of its own."""

    def __init__(self, place: Path, end: str, cwd: Path = ROOT) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, end],
            cwd=cwd,
            env=os.environ | {"TMPDIR": str(place), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        pid, runtime = self.process.stdout.readline().split(maxsplit=1)
        self.runtime = Path(runtime.rstrip("\n"))
        self.warden = int(pid)
        self._descriptor = os.pidfd_open(self.warden)

    def warden_ended(self, patience_s: float = PATIENCE_S) -> bool:
        return bool(poll([self._descriptor], patience_s))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        assert self.warden_ended()
        os.close(self._descriptor)


@pytest.fixture
def place() -> Iterator[Path]:
    # Short, so that it is taken for sockets.
    with tempfile.TemporaryDirectory(prefix="w w", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def owners() -> Iterator[list[Owner]]:
    started: list[Owner] = []
    yield started
    for owner in started:
        owner.close()


def test_it_clears_what_a_killed_owner_left(place: Path, owners: list[Owner]) -> None:
    owners.append(owner := Owner(place, "killed"))
    assert owner.runtime.is_relative_to(place)
    assert not owner.warden_ended(0)
    owner.process.kill()
    owner.process.wait()
    assert owner.warden_ended()
    assert not owner.runtime.exists()


def test_it_clears_what_an_owner_left_that_forgot_to_dismiss_it(
    place: Path, owners: list[Owner]
) -> None:
    owners.append(owner := Owner(place, "forget"))
    owner.process.communicate("")
    assert owner.warden_ended()
    assert not owner.runtime.exists()


def test_dismissed_it_clears_nothing(place: Path, owners: list[Owner]) -> None:
    owners.append(owner := Owner(place, "dismiss"))
    owner.process.communicate("")
    assert owner.warden_ended()
    assert (owner.runtime / "file").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_its_owner_s_group_do_not_reach_it(
    place: Path, owners: list[Owner], number: signal.Signals
) -> None:
    owners.append(owner := Owner(place, "killed"))
    os.killpg(owner.process.pid, number)
    owner.process.wait()
    assert owner.warden_ended()
    assert not owner.runtime.exists()


def test_it_imports_what_its_owner_imported(place: Path) -> None:
    """Not a folder of that name in the working directory."""
    (place / "cwd" / "tprig").mkdir(parents=True)
    (place / "cwd" / "tprig" / "__init__.py").write_text("raise SystemExit\n")
    script = f"import sys; sys.path[0] = {str(ROOT)!r}\n{OWNER}"
    done = subprocess.run(
        [sys.executable, "-c", script, "forget"],
        cwd=place / "cwd",
        env=os.environ | {"TMPDIR": str(place)},
        input="",
        capture_output=True,
        text=True,
        check=True,
    )
    pid, runtime = done.stdout.split(maxsplit=1)
    if (descriptor := _pidfd(int(pid))) is not None:
        assert poll([descriptor], PATIENCE_S)
        os.close(descriptor)
    assert not Path(runtime.rstrip("\n")).exists()


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def test_it_goes_when_it_is_dismissed() -> None:
    with Warden() as dismissed:
        descriptor = os.pidfd_open(dismissed.pid)
        assert not poll([descriptor], 0)
    assert poll([descriptor], 0)
    os.close(descriptor)
    dismissed.dismiss()


def test_one_that_was_killed_is_dismissed_all_the_same() -> None:
    killed = Warden()
    os.kill(killed.pid, signal.SIGKILL)
    killed.dismiss()


def test_one_that_is_stopped_does_not_hold_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warden, "DISMISS_S", 0.1)
    stopped = Warden()
    descriptor = os.pidfd_open(stopped.pid)
    os.kill(stopped.pid, signal.SIGSTOP)
    stopped.dismiss()
    assert poll([descriptor], 0)
    os.close(descriptor)
