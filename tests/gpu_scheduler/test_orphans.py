from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from gpu_scheduler import host as this_host
from gpu_scheduler import orphans
from gpu_scheduler.owner import LEASE_ID_VARIABLE
from gpu_scheduler.scheduler import lease
from tests.gpu_scheduler.children import ROOT

Start = Callable[..., "subprocess.Popen[str]"]
READY = "print('ready', flush=True); input()"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}"


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start(lease_id: str, script: str = READY, **options: object) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]
            [sys.executable, "-c", script],
            env=os.environ | {LEASE_ID_VARIABLE: lease_id},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_carriers_are_those_that_were_given_the_id(start: Start) -> None:
    ours, theirs = start("ours"), start("theirs")
    assert orphans.carriers("ours") == (ours.pid,)
    assert orphans.carriers("ours", [theirs.pid, ours.pid]) == (ours.pid,)
    assert orphans.carriers("our") == ()


FORKED = """
import os, sys
from gpu_scheduler import orphans
{before}
if os.fork():
    os._exit(0)
{after}
print(os.getpid(), flush=True)
input()
"""


MARK = "orphans.mark('ours')"


@pytest.mark.parametrize(("before", "after"), [(MARK, ""), ("", MARK)])
def test_forked_process_carries_the_id_though_its_environment_does_not(
    before: str, after: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKED.format(before=before, after=after)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.wait()
        assert orphans.carriers("ours") == (pid,)
        assert orphans.carriers("our") == ()
        assert orphans.reap("ours", [pid]) == ()
        assert not this_host.is_running(pid)


def test_lease_marks_what_is_forked_while_it_lasts() -> None:
    with lease(1, kind="cpu", test="t", wait_s=60) as held:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            held.release()  # does nothing here
            os.read(reader, 1)
            os._exit(0)
        try:
            assert orphans.carriers(held.id) == (pid,)
        finally:
            os.close(writer)
            os.close(reader)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert not [link for link in orphans._open_files(os.getpid()) if held.id in link]


def test_orphan_is_asked_to_end(start: Start) -> None:
    process = start("ours", f"import signal, os; {READY}")
    assert orphans.reap("ours", [process.pid]) == ()
    assert process.wait() == -15


def test_orphan_that_does_not_listen_is_killed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "_TERM_S", 0.0)
    process = start("ours", DEAF)
    assert orphans.reap("ours", [process.pid]) == ()
    assert process.wait() == -9


def test_process_of_another_lease_is_left_alone(start: Start) -> None:
    """A pid that was given anew, or a wrong list: only the id decides."""
    theirs = start("theirs")
    assert orphans.reap("ours", [theirs.pid, os.getpid()]) == ()
    assert this_host.is_running(theirs.pid)


def test_process_that_is_gone_already_is_no_trouble(start: Start) -> None:
    process = start("ours")
    process.kill()
    process.communicate()
    assert orphans.reap("ours", [process.pid]) == ()


def test_process_of_another_user_is_left_and_told(start: Start) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can play two users")
    theirs = start("ours", f"import os; os.setresuid(65534, 65534, 65534); {READY}")
    assert orphans.reap("ours", [theirs.pid]) == (theirs.pid,)
    assert this_host.is_running(theirs.pid)
