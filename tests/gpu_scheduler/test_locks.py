from __future__ import annotations

import errno
import os
import pwd
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import filelock
import pytest

from gpu_scheduler import locks
from gpu_scheduler.errors import LockFolderError
from gpu_scheduler.locks import HeldLock, LockFolder, check_local, file_system
from gpu_scheduler.owner import Owner, encode
from tests.gpu_scheduler.children import Child

HOLD = """
held = LockFolder.default().try_lock("GPU-1")
say(held is not None)
"""
NOBODY = 65534
BECOME = f"become({NOBODY})"
SIGN = "held.sign(encode(Owner.current('t')))\nsay(1)\nwait()"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def take(folder: LockFolder, name: str = "GPU-1") -> HeldLock:
    held = folder.try_lock(name)
    assert held is not None
    return held


def own_descriptors(path: Path) -> list[str]:
    """What this process has open below a folder."""
    links = [Path(entry) for entry in Path("/proc/self/fd").iterdir()]
    return [str(link.readlink()) for link in links if str(path) in os.path.realpath(link)]


@pytest.fixture
def narrow_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("narrow_umask")
def test_every_user_may_use_what_is_made(lock_path: Path) -> None:
    held = take(LockFolder(lock_path), "cpu:1:0")
    held.sign(encode(Owner.current("t")))
    assert mode(lock_path) == 0o1777
    files = sorted(lock_path.iterdir())
    assert [path.name for path in files] == ["cpu_1_0.lock", "cpu_1_0.owner"]
    assert [mode(path) for path in files] == [0o666, 0o666]


def test_one_holder_at_a_time_within_a_process(folder: LockFolder) -> None:
    held = take(folder)
    assert folder.try_lock("GPU-1") is None
    assert folder.try_lock("GPU-2") is not None
    held.release()
    held.release()
    take(folder)


def test_lock_is_the_one_that_filelock_takes(folder: LockFolder, lock_path: Path) -> None:
    held = take(folder)
    with pytest.raises(filelock.Timeout), filelock.FileLock(lock_path / "GPU-1.lock", timeout=0):
        pass
    held.release()
    with filelock.FileLock(lock_path / "GPU-1.lock", timeout=0):
        assert folder.try_lock("GPU-1") is None


def test_refused_lock_leaves_no_descriptor(folder: LockFolder, lock_path: Path) -> None:
    held = take(folder)
    assert folder.try_lock("GPU-1") is None
    assert len(own_descriptors(lock_path)) == 1
    held.release()
    assert own_descriptors(lock_path) == []


def test_kernel_frees_the_lock_of_a_killed_holder(folder: LockFolder) -> None:
    with Child(HOLD + "wait()") as child:
        assert child.hear() == "True"
        assert folder.try_lock("GPU-1") is None
        child.kill()
        take(folder)


def test_forked_child_does_not_keep_the_lock(folder: LockFolder) -> None:
    forks = """
pid = os.fork()
if pid == 0:
    held.release()  # must touch neither the parent's lock nor its record
    say("forked")
    sys.stdin.read()  # lives until the test closes the pipe
    os._exit(0)
os.waitpid(pid, 0)
"""
    with Child(HOLD + forks) as child:
        assert [child.hear(), child.hear()] == ["True", "forked"]
        assert folder.try_lock("GPU-1") is None
        child.kill()
        take(folder)


def test_lock_of_a_forked_child_is_its_own(folder: LockFolder) -> None:
    """A lock inherited from the parent must not close the child's descriptor of that number."""
    script = """
folder = LockFolder.default()
inherited = folder.try_lock("GPU-2")
if os.fork() == 0:
    own = folder.try_lock("GPU-1")
    inherited.release()
    say(own is not None)
    wait()
    os._exit(0)
os.wait()
"""
    with Child(script) as child:
        assert child.hear() == "True"
        assert folder.try_lock("GPU-1") is None
        assert folder.try_lock("GPU-2") is None
        child.tell()
        child.process.wait()
        take(folder)


def test_program_started_by_the_holder_does_not_keep_the_lock(folder: LockFolder) -> None:
    starts = """
import subprocess
subprocess.Popen(["cat"], stdin=sys.stdin, close_fds=False)
say("started")
wait()
"""
    with Child(HOLD + starts) as child:
        assert [child.hear(), child.hear()] == ["True", "started"]
        child.kill()
        take(folder)


def test_deleted_lock_file_is_noticed(
    folder: LockFolder, lock_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaner deletes the file between open and flock: the lock on it would exclude nobody."""
    real = filelock.lock_descriptor

    def cleaner_first(descriptor: int, *, blocking: bool) -> bool:
        monkeypatch.setattr(filelock, "lock_descriptor", real)
        (lock_path / "GPU-1.lock").unlink()
        return real(descriptor, blocking=blocking)

    monkeypatch.setattr(filelock, "lock_descriptor", cleaner_first)
    held = take(folder)
    assert folder.try_lock("GPU-1") is None
    assert len(own_descriptors(lock_path)) == 1
    held.release()


def test_replaced_lock_file_is_noticed(
    folder: LockFolder, lock_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = filelock.lock_descriptor
    others: list[HeldLock] = []

    def other_first(descriptor: int, *, blocking: bool) -> bool:
        monkeypatch.setattr(filelock, "lock_descriptor", real)
        (lock_path / "GPU-1.lock").unlink()
        others.append(take(folder))
        return real(descriptor, blocking=blocking)

    monkeypatch.setattr(filelock, "lock_descriptor", other_first)
    assert folder.try_lock("GPU-1") is None
    assert len(others) == 1


def test_endless_cleaner_is_an_error(
    folder: LockFolder, lock_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = filelock.lock_descriptor

    def cleaner_first(descriptor: int, *, blocking: bool) -> bool:
        (lock_path / "GPU-1.lock").unlink()
        return real(descriptor, blocking=blocking)

    monkeypatch.setattr(filelock, "lock_descriptor", cleaner_first)
    with pytest.raises(LockFolderError, match="deleted"):
        folder.try_lock("GPU-1")
    assert own_descriptors(lock_path) == []


def test_deleted_folder_is_made_again(folder: LockFolder, lock_path: Path) -> None:
    lock_path.rmdir()
    take(folder)
    assert mode(lock_path) == 0o1777


def test_lock_makes_its_file_young(folder: LockFolder, lock_path: Path) -> None:
    take(folder).release()
    os.utime(lock_path / "GPU-1.lock", (0, 0))
    take(folder)
    assert (lock_path / "GPU-1.lock").stat().st_mtime > 0


def test_record_lasts_as_long_as_the_hold(folder: LockFolder) -> None:
    owner = Owner.current("suites/test_x.py::test_y")
    held = take(folder)
    assert folder.read_record("GPU-1") is None
    held.sign(encode(replace(owner, command="a much longer command than the next one")))
    held.sign(encode(owner))
    assert folder.read_record("GPU-1") == owner
    held.release()
    assert folder.read_record("GPU-1") is None


def test_record_of_a_killed_holder_frees_and_blocks_nothing(folder: LockFolder) -> None:
    with Child(HOLD + SIGN) as child:
        assert [child.hear(), child.hear()] == ["True", "1"]
        child.kill()
        left = folder.read_record("GPU-1")
        assert left is not None
        assert left.pid == child.process.pid
    take(folder)


@pytest.mark.parametrize("garbage", [b"", b"\0" * 10, b"{", b"x" * 100_000])
def test_garbage_record_is_no_record(folder: LockFolder, lock_path: Path, garbage: bytes) -> None:
    (lock_path / "GPU-1.owner").write_bytes(garbage)
    assert folder.read_record("GPU-1") is None
    held = take(folder)
    held.sign(encode(Owner.current("t")))
    assert folder.read_record("GPU-1") is not None


def test_record_is_not_written_through_a_link(folder: LockFolder, lock_path: Path) -> None:
    victim = lock_path.parent / "victim"
    victim.write_text("mine")
    (lock_path / "GPU-1.owner").symlink_to(victim)
    take(folder).sign(encode(Owner.current("t")))
    assert victim.read_text() == "mine"
    victim.write_bytes(encode(Owner.current("t")))
    assert folder.read_record("GPU-1") is None


def test_record_that_is_a_pipe_blocks_nobody(folder: LockFolder, lock_path: Path) -> None:
    os.mkfifo(lock_path / "GPU-1.owner")
    assert folder.read_record("GPU-1") is None
    held = take(folder)
    held.sign(encode(Owner.current("t")))
    held.release()


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/hosts")])
def test_lock_file_must_be_a_plain_file(
    folder: LockFolder, lock_path: Path, plant: Callable[[Path], object]
) -> None:
    plant(lock_path / "GPU-1.lock")
    with pytest.raises(LockFolderError, match=r"GPU-1\.lock"):
        folder.try_lock("GPU-1")
    assert own_descriptors(lock_path) == []


def test_name_cannot_leave_the_folder(folder: LockFolder, lock_path: Path) -> None:
    take(folder, "../escape/x")
    assert [path.name for path in lock_path.iterdir()] == [".._escape_x.lock"]


def test_file_system_without_flock_is_an_error(
    folder: LockFolder, lock_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, *, blocking: bool) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(filelock, "lock_descriptor", refuse)
    with pytest.raises(LockFolderError, match="No locks available"):
        folder.try_lock("GPU-1")
    assert own_descriptors(lock_path) == []


def test_folder_that_is_a_link_is_refused(lock_path: Path) -> None:
    lock_path.symlink_to(lock_path.parent)
    with pytest.raises(LockFolderError, match="symbolic link"):
        LockFolder(lock_path)


def test_folder_that_is_a_file_is_refused(lock_path: Path) -> None:
    lock_path.touch()
    with pytest.raises(LockFolderError, match="no folder"):
        LockFolder(lock_path)


def test_folder_below_a_file_is_refused(lock_path: Path) -> None:
    lock_path.touch()
    with pytest.raises(LockFolderError, match="cannot be made"):
        LockFolder(lock_path / "below")


def test_folder_without_the_sticky_bit_is_refused(lock_path: Path) -> None:
    lock_path.mkdir()
    lock_path.chmod(0o777)
    with pytest.raises(LockFolderError, match="chmod 1777"):
        LockFolder(lock_path)


def test_private_folder_is_usable(lock_path: Path) -> None:
    lock_path.mkdir(mode=0o700)
    take(LockFolder(lock_path))


def test_folder_that_may_not_be_written_is_refused(
    lock_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_args, **_kwargs: False)
    with pytest.raises(LockFolderError, match=f"uid {os.geteuid()} may not write"):
        LockFolder(lock_path)


def test_many_makers_of_one_folder_agree(lock_path: Path) -> None:
    barrier = threading.Barrier(8)
    made: list[LockFolder] = []

    def make() -> None:
        barrier.wait()
        made.append(LockFolder(lock_path))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert [path.name for path in lock_path.parent.iterdir()] == [lock_path.name]
    held = take(made[0])
    assert [folder.try_lock(held.name) for folder in made] == [None] * 8


MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 27 0:40 / /home rw,relatime - nfs4 filer:/home rw,vers=4.2
32 27 0:41 / /home/my\040disk rw - xfs /dev/vdb rw
33 27 0:42 / /mnt rw - ext4 /dev/vdc rw
34 33 0:43 / /mnt rw - fuse.sshfs host:/ rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/gpu_scheduler", "ext4"),
        ("/home/bob/locks", "nfs4"),
        ("/homely", "ext4"),
        ("/home/my disk/locks", "xfs"),
        ("/mnt/locks", "fuse.sshfs"),
    ],
)
def test_file_system_of_a_path(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS) == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs", "lustre"])
def test_network_file_system_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(LockFolderError, match=f"(?s){kind}.*TPRIG_LOCK_DIR"):
        check_local(tmp_path, f"1 0 0:1 / / rw - {kind} somewhere rw")


@pytest.mark.parametrize("kind", ["ext4", "tmpfs", "overlay", "xfs", "btrfs"])
def test_local_file_system_is_taken(kind: str, tmp_path: Path) -> None:
    check_local(tmp_path, f"1 0 0:1 / / rw - {kind} somewhere rw")


def test_real_mount_table_is_understood(tmp_path: Path) -> None:
    assert file_system(tmp_path, Path("/proc/self/mountinfo").read_text("utf-8")) is not None


@pytest.fixture
def shared_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A lock folder that another user can reach; pytest's own temporary folders are private."""
    if os.geteuid() != 0:
        pytest.skip("only root can play two users")
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        Path(parent).chmod(0o1777)
        monkeypatch.setenv(locks.LOCK_DIR_VARIABLE, f"{parent}/locks")
        yield Path(parent) / "locks"


def test_second_user_is_excluded_and_served(shared_path: Path) -> None:
    folder = LockFolder(shared_path)
    take(folder).release()
    with Child(BECOME + HOLD + "wait()") as child:
        assert child.hear() == "True"
        assert folder.try_lock("GPU-1") is None
        child.kill()
        take(folder)


def test_first_user_uses_what_the_second_made(shared_path: Path) -> None:
    with Child(BECOME + "; os.umask(0o077)" + HOLD + SIGN) as child:
        assert [child.hear(), child.hear()] == ["True", "1"]
        folder = LockFolder(shared_path)
        record = folder.read_record("GPU-1")
        assert record is not None
        assert record.user == pwd.getpwuid(NOBODY).pw_name
        assert folder.try_lock("GPU-1") is None
        child.kill()
    take(folder).sign(encode(Owner.current("mine")))
    assert shared_path.stat().st_uid == NOBODY


def test_lock_file_of_a_strict_user_can_still_be_locked(shared_path: Path) -> None:
    LockFolder(shared_path)
    (shared_path / "GPU-1.lock").touch(mode=0o644)
    with Child(BECOME + HOLD) as child:
        assert child.hear() == "True"
