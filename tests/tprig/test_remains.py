from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from gpu_scheduler import host
from gpu_scheduler.owner import Owner
from tprig import remains
from tprig.remains import (
    RECORD,
    SHM,
    Claimant,
    Footprint,
    RuntimeFolderError,
    runtime_root,
    sweep,
)
from tprig.wire import poll

PATIENCE_S = 30.0
ROOT = Path(__file__).parents[2]

LEADER = """
import os, sys, time
os.setsid()
children = []
while len(children) < 2 and (child := os.fork()):
    children.append(child)
if len(children) == 2:
    print(*children, flush=True)
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder whose path is short."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def footprint() -> Iterator[Footprint]:
    made = Footprint("e1")
    yield made
    made.clear()


class Session:
    """A host that leads a session, and its two children."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.children = [int(pid) for pid in self.process.stdout.readline().split()]
        self.pids = {self.process.pid, *self.children}
        self._descriptors = [os.pidfd_open(pid) for pid in self.pids]

    def gone(self) -> bool:
        return len(poll(self._descriptors, 0)) == len(self.pids)

    def close(self) -> None:
        for descriptor in self._descriptors:
            if not poll([descriptor], 0):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture
def session() -> Iterator[Session]:
    started = Session()
    yield started
    started.close()


# --- the root --------------------------------------------------------------------------------


def test_the_root_is_private_to_the_user(place: Path) -> None:
    root = runtime_root()
    assert root == place / f"tprig-{os.getuid()}"
    assert root.stat().st_mode & 0o777 == 0o700
    assert runtime_root() == root


@pytest.mark.parametrize("name", ["x" * 60, "a#b", "a?b", "100%"])
def test_a_temporary_folder_that_sockets_cannot_lie_in_is_not_taken(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    base = place / name
    base.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    assert runtime_root() == remains.FALLBACK / f"tprig-{os.getuid()}"


@pytest.mark.parametrize("name", ["x" * 25, "a b", "ä"])
def test_sockets_fit_below_every_root(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    base = place / name
    base.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    footprint = Footprint("e")
    socket_bytes = len(os.fsencode(footprint.runtime)) + 1 + 36
    footprint.clear()
    assert socket_bytes <= 107
    assert footprint.runtime.is_relative_to(base)


def test_a_link_that_somebody_laid_in_wait_is_refused(place: Path) -> None:
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    (place / f"tprig-{os.getuid()}").symlink_to(elsewhere)
    with pytest.raises(RuntimeFolderError, match="found a symbolic link of user") as caught:
        Footprint("e")
    assert "set TMPDIR to a folder of your own" in str(caught.value)
    assert list(elsewhere.iterdir()) == []


def test_a_dangling_link_is_refused(place: Path) -> None:
    (place / f"tprig-{os.getuid()}").symlink_to(place / "nowhere")
    with pytest.raises(RuntimeFolderError, match="a symbolic link"):
        runtime_root()
    assert not (place / "nowhere").exists()


def test_a_file_in_its_place_is_refused(place: Path) -> None:
    (place / f"tprig-{os.getuid()}").touch()
    with pytest.raises(RuntimeFolderError, match="found no folder of user"):
        runtime_root()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_another_user_s_folder_is_refused(place: Path) -> None:
    root = place / f"tprig-{os.getuid()}"
    root.mkdir()
    os.chown(root, 65534, 65534)
    with pytest.raises(RuntimeFolderError, match="found a folder of user 65534"):
        runtime_root()


def test_a_root_that_cannot_be_made(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place / "gone"))
    with pytest.raises(RuntimeFolderError, match=r"cannot make .* No such file or directory; set"):
        runtime_root()


def test_a_folder_that_cannot_be_written_to(footprint: Footprint, session: Session) -> None:
    (footprint.runtime / f".{RECORD}").mkdir()
    with pytest.raises(RuntimeFolderError, match=r"cannot write to .*: Is a directory; make room"):
        footprint.own(session.process.pid)
    # The host is known all the same: it can be killed.
    assert session.pids == set(footprint.pids())


# --- what is there ---------------------------------------------------------------------------


def test_a_new_engine_has_left_nothing(footprint: Footprint) -> None:
    assert not footprint.remains()
    assert footprint.pids() == ()


def test_everything_of_an_engine_is_found_and_cleared(
    footprint: Footprint, session: Session
) -> None:
    footprint.own(session.process.pid)
    segment = SHM / f"{footprint.shm_prefix}abc"
    other = SHM / f"a-{footprint.shm_prefix}def"
    folder = footprint.runtime / "deep"
    folder.mkdir()
    file = folder / "file"
    for path in (segment, other, file):
        path.touch()
    found = footprint.remains()
    assert set(found.pids) == session.pids
    assert set(found.paths) == {segment, other, file}
    footprint.clear()
    assert session.gone()
    assert not any(path.exists() for path in (segment, other, footprint.runtime))
    assert not footprint.remains()


def test_a_stopped_process_is_cleared_too(footprint: Footprint, session: Session) -> None:
    footprint.own(session.process.pid)
    os.kill(session.children[0], signal.SIGSTOP)
    footprint.clear()
    assert session.gone()


def test_children_that_outlived_the_host_are_found_by_its_session(
    footprint: Footprint, session: Session
) -> None:
    footprint.own(session.process.pid)
    session.process.kill()
    session.process.wait()
    assert set(footprint.pids()) == set(session.children)
    footprint.clear()
    assert session.gone()


def test_a_host_that_does_not_lead_a_session_yet_is_found(footprint: Footprint) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as process:
        footprint.own(process.pid)
        assert footprint.pids() == (process.pid,)
        footprint.clear()
        assert process.wait() == -signal.SIGKILL


def test_a_zombie_is_gone(footprint: Footprint) -> None:
    with subprocess.Popen([sys.executable, "-c", "import os; os.setsid()"]) as process:
        footprint.own(process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
        assert footprint.pids() == ()


THREADED = """
import ctypes, os, threading, time
os.setsid()
def outlive():
    print("lives", flush=True)
    time.sleep(1000)
threading.Thread(target=outlive).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_zombie_of_which_a_thread_lives_is_not_gone(footprint: Footprint) -> None:
    with subprocess.Popen([sys.executable, "-c", THREADED], stdout=subprocess.PIPE) as process:
        footprint.own(process.pid)
        deadline_s = time.monotonic() + PATIENCE_S
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        assert footprint.pids() == (process.pid,)
        footprint.clear()
        assert process.wait() == -signal.SIGKILL


def test_a_stranger_with_the_host_s_process_id_is_left_alone(
    footprint: Footprint, session: Session
) -> None:
    footprint.own(session.process.pid)
    claimant = read(footprint.runtime)
    assert claimant.host_start_token is not None
    earlier = msgspec.structs.replace(claimant, host_start_token=claimant.host_start_token - 1)
    write(footprint.runtime, earlier)
    assert remains._session_pids(earlier) == ()
    assert remains._session_pids(claimant) != ()


def test_how_processes_ended_is_read_from_what_they_noted(footprint: Footprint) -> None:
    assert footprint.exit_code(12) is None
    path = footprint.runtime / remains.ENDINGS
    path.write_text("123 0\n12 -9\n7 nonsense\n12 1\n", encoding="ascii")
    codes = {pid: footprint.exit_code(pid) for pid in (123, 12, 7, 2, 3)}
    assert codes == {123: 0, 12: -9, 7: None, 2: None, 3: None}


# --- sweeping --------------------------------------------------------------------------------


def read(runtime: Path) -> Claimant:
    return msgspec.json.decode((runtime / RECORD).read_bytes(), type=Claimant)


def write(runtime: Path, claimant: Claimant) -> None:
    (runtime / RECORD).write_bytes(msgspec.json.encode(claimant))


def owned(footprint: Footprint, **changes: object) -> None:
    """Have the engine belong to another owner."""
    claimant = read(footprint.runtime)
    owner = dataclasses.replace(claimant.owner, **changes)  # type: ignore[arg-type]
    write(footprint.runtime, msgspec.structs.replace(claimant, owner=owner))


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_an_engine_of_a_living_owner_is_left_alone(footprint: Footprint, session: Session) -> None:
    footprint.own(session.process.pid)
    before = footprint.remains()
    assert sweep() == []
    assert footprint.remains() == before


def test_an_engine_of_a_dead_owner_is_cleared(footprint: Footprint, session: Session) -> None:
    footprint.own(session.process.pid)
    (SHM / f"{footprint.shm_prefix}x").touch()
    owned(footprint, pid=dead_pid())
    assert sweep() == ["e1"]
    assert session.gone()
    assert not footprint.remains()
    assert not footprint.runtime.exists()


def test_an_owner_s_process_id_may_be_another_s_by_now(footprint: Footprint) -> None:
    token = host.start_token(os.getpid())
    assert token is not None
    owned(footprint, start_token=token - 1)
    assert sweep() == ["e1"]


def test_an_owner_in_another_container_cannot_be_seen_and_is_left_alone(
    footprint: Footprint,
) -> None:
    owned(footprint, pid=dead_pid(), pid_namespace=1)
    assert sweep() == []
    owned(footprint, pid=dead_pid(), host="another")
    assert sweep() == []
    assert footprint.runtime.exists()


def test_after_a_boot_files_are_cleared_and_processes_are_strangers(
    footprint: Footprint, session: Session
) -> None:
    footprint.own(session.process.pid)
    owned(footprint, boot_id="another boot")
    assert sweep() == ["e1"]
    assert not footprint.runtime.exists()
    assert not session.gone()


def test_the_wall_clock_does_not_decide_who_lives(
    footprint: Footprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start time in seconds since 1970 moves when somebody sets the clock."""
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert sweep() == []
    assert footprint.runtime.exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"[]", b'{"engine": 1}', b"\xff", b"x" * 100_000],
    ids=lambda data: ascii(data[:10]),
)
def test_a_record_that_cannot_be_read_is_passed_over(footprint: Footprint, data: bytes) -> None:
    (footprint.runtime / RECORD).write_bytes(data)
    stranger = footprint.runtime.parent / "stranger"
    stranger.mkdir()
    (footprint.runtime.parent / "file").touch()
    assert sweep() == []
    assert stranger.exists()


def test_a_sweep_of_another_process_spares_the_living(
    footprint: Footprint, session: Session
) -> None:
    footprint.own(session.process.pid)
    root = footprint.runtime.parent
    script = "import sys, pathlib, tprig.remains as r; print(r.sweep(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", script, str(root)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert set(footprint.pids()) == session.pids


def test_what_cannot_be_killed_keeps_its_record(
    footprint: Footprint, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that is stuck in the kernel: a later sweep must find it again."""
    footprint.own(session.process.pid)
    monkeypatch.setattr(remains, "GONE_WAIT_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda *_: None)
        footprint.clear()
        assert set(footprint.remains().pids) == session.pids
        assert read(footprint.runtime).host_pid == session.process.pid
        owned(footprint, pid=dead_pid())
        assert sweep() == []
    monkeypatch.undo()


def test_the_record_names_its_owner(footprint: Footprint) -> None:
    owner = read(footprint.runtime).owner
    assert owner == dataclasses.replace(Owner.current("e1"), since_unix_s=owner.since_unix_s)
