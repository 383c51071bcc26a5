"""What a process of an engine does for those who watch: nothing outlives it, nothing hides."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tprig.inject.foreign.client import INJECT
from tprig import stacks

PATIENCE_S = 60.0
"""How long a process may take before a test fails; no test passes by it."""

PREAMBLE = """
import os, signal, sys, time
from pathlib import Path
from tprig_inject import process
place = process.Place(Path(sys.argv[1]), "tprig-test-")
def say(*words):
    print(*words, flush=True)
"""


class Script:
    """A Python process that runs a script after `PREAMBLE`, and says what it does in lines."""

    def __init__(self, script: str, runtime: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + script, str(runtime)],
            env=os.environ | {"PYTHONPATH": str(INJECT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def hear(self) -> list[str]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
        assert ready, "the script said nothing"
        return self._process.stdout.readline().split()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Watch:
    """Tells when a process of that id has ended, and kills it if the test fails."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def ended(self) -> bool:
        return bool(select.select([self._descriptor], [], [], PATIENCE_S)[0])

    def close(self) -> None:
        if not select.select([self._descriptor], [], [], 0)[0]:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        os.close(self._descriptor)


@pytest.fixture
def watches() -> Iterator[list[Watch]]:
    made: list[Watch] = []
    yield made
    for watch in made:
        watch.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[list[Script]]:
    started: list[Script] = []
    yield started
    for script in started:
        script.close()


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    folder = tmp_path / "run time"
    folder.mkdir()
    return folder


# --- death -------------------------------------------------------------------------------------

FAMILY = """
process.watch(place)
first = os.fork()
if not first:
    second = os.fork()
    if second:
        say(os.getpid(), second)
    time.sleep(1000)
time.sleep(1000)
"""


def test_a_whole_family_dies_with_the_eldest(
    run: list[Script], runtime: Path, watches: list[Watch]
) -> None:
    """Each one watches its own parent: killing the first ends the second, and so on."""
    run.append(script := Script(FAMILY, runtime))
    watches += [Watch(int(pid)) for pid in script.hear()]
    script.kill()
    assert all(watch.ended() for watch in watches)


def test_the_eldest_dies_with_who_started_it(
    run: list[Script], runtime: Path, watches: list[Watch]
) -> None:
    script = """
import subprocess
inner = subprocess.Popen([sys.executable, "-c", '''
import os, sys, time
from pathlib import Path
from tprig_inject import process
process.watch(process.Place(Path(sys.argv[1]), "p"))
print(os.getpid(), flush=True)
time.sleep(1000)
''', sys.argv[1]])
time.sleep(1000)
"""
    run.append(started := Script(script, runtime))
    watches.append(Watch(int(started.hear()[0])))
    started.kill()
    assert watches[0].ended()


ORPHAN = """
parent = os.getpid()
read, write = os.pipe()
if not os.fork():
    middle = os.getpid()
    if not os.fork():
        os.close(write)
        while os.getppid() == middle:
            time.sleep(0.001)
        process.die_with_parent(middle)
        say("lives on")
        os._exit(0)
    os._exit(0)
os.wait()
os.close(write)
os.read(read, 1)
say("ended")
"""


def test_a_process_whose_parent_is_gone_already_ends_at_once(
    run: list[Script], runtime: Path
) -> None:
    """The kernel's word is given only for a parent that ends later."""
    run.append(script := Script(ORPHAN, runtime))
    assert script.hear() == ["ended"]


# --- stacks ------------------------------------------------------------------------------------

BUSY = """
import threading
process.watch(place)
def in_a_thread():
    say("thread")
    time.sleep(1000)
def in_the_child():
    threading.Thread(target=in_a_thread, daemon=True).start()
    time.sleep(1000)
child = os.fork()
if not child:
    in_the_child()
say(os.getpid(), child)
time.sleep(1000)
"""


def test_every_thread_s_stack_is_told_on_a_signal(
    run: list[Script], runtime: Path, tmp_path: Path, watches: list[Watch]
) -> None:
    run.append(script := Script(BUSY, runtime))
    said = [script.hear(), script.hear()]
    ((parent, child),) = (list(map(int, words)) for words in said if words != ["thread"])
    watches.append(Watch(child))
    files = stacks.take([parent, child], runtime, tmp_path / "stacks")
    texts = {path.name: path.read_text() for path in files}
    assert set(texts) == {f"{parent}.txt", f"{child}.txt"}
    assert "in in_the_child" in texts[f"{child}.txt"]
    assert "in in_a_thread" in texts[f"{child}.txt"]
    assert "in_the_child" not in texts[f"{parent}.txt"]
    assert re.search(r'File "<string>", line \d+ in <module>', texts[f"{parent}.txt"])
    assert stacks.STACKS_SIGNAL == signal.SIGUSR2


def test_a_crash_leaves_its_stack(run: list[Script], runtime: Path) -> None:
    script = """
import faulthandler
process.watch(place)
def crash():
    faulthandler._sigsegv()
say(os.getpid())
crash()
"""
    run.append(started := Script(script, runtime))
    pid = started.hear()[0]
    assert started.hear() == []
    assert "in crash" in (runtime / f"{pid}.stacks").read_text()


# --- place -------------------------------------------------------------------------------------

SETTLED = """
import json, tempfile
from multiprocessing.shared_memory import SharedMemory
process.settle(place)
segments = [SharedMemory(create=True, size=8) for _ in range(20)]
file, path = tempfile.mkstemp()
child = os.popen(sys.executable + " -c 'import tempfile; print(tempfile.gettempdir())'").read()
print(json.dumps({
    "segments": [segment.name for segment in segments],
    "file": path, "child": child.strip(), "sockets": os.environ["VLLM_RPC_BASE_PATH"],
    "there": all(os.path.exists("/dev/shm/" + segment.name) for segment in segments),
}), flush=True)
for segment in segments:
    segment.close()
    segment.unlink()
"""


def test_all_that_a_process_leaves_carries_the_engine_s_name(runtime: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + SETTLED, str(runtime)],
        env=os.environ | {"PYTHONPATH": str(INJECT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["there"]
    assert len(set(told["segments"])) == 20
    assert all(re.fullmatch("tprig-test-[0-9a-f]{8}", name) for name in told["segments"])
    assert Path(told["file"]).parent == runtime
    assert told["child"] == told["sockets"] == str(runtime)
