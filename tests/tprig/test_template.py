"""The client of a warm template, with interpreters that have no vLLM, or a stand-in for it."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tprig import messages, template
from tprig.template import Child, Template, TemplateError
from tprig.wire import PeerGoneError, Wire, poll

PATIENCE_S = 60.0
STAND_IN = {
    "__init__.py": '__version__ = "9.9"\n',
    "platforms.py": "class current_platform:\n    is_cpu = staticmethod(lambda: True)\n",
}
"""All of vLLM that a template needs."""


def overlay(folder: Path, **files: str) -> Path:
    package = folder / "overlay" / "vllm"
    package.mkdir(parents=True)
    for name, text in {**STAND_IN, **files}.items():
        (package / name).write_text(text)
    return package.parent


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "template.log"


@pytest.fixture
def warm(tmp_path: Path, log: Path) -> Iterator[Template]:
    started = Template(sys.executable, overlay(tmp_path), {"A_VARIABLE": "1"}, log)
    yield started
    started.close()


def request(engine: str, folder: Path) -> dict[str, Any]:
    """What a host is asked for: it has no engine to build, and says so."""
    return {
        "engine": engine,
        "runtime": str(folder),
        "shm_prefix": f"{engine}-",
        "log": str(folder / f"{engine}.log"),
        "platform": "cuda",
        "environment": {},
        "engine_args": {},
        "core_process": False,
        "affinity": None,
        "ranks_per_device": 1,
        "seams": {},
    }


def descriptors() -> list[str]:
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


# --- interpreters ----------------------------------------------------------------------------


def told(python: Path | str, log: Path, **arguments: Any) -> str:  # noqa: ANN401 - Template's
    """What the user is told of an interpreter that does not serve."""
    with pytest.raises(TemplateError) as caught:
        Template(str(python), arguments.pop("overlay", None), {}, log, **arguments)
    assert f"expected a Python with vLLM at {python}, found " in str(caught.value)
    assert "name one with --tprig-vllm-python" in str(caught.value)
    return str(caught.value)


def script(folder: Path, text: str, mode: int = 0o755) -> Path:
    path = folder / "python"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_an_interpreter_that_is_missing(tmp_path: Path, log: Path) -> None:
    assert "No such file or directory" in told(tmp_path / "no" / "python", log)


def test_a_file_that_may_not_be_executed(tmp_path: Path, log: Path) -> None:
    assert "Permission denied" in told(script(tmp_path, "#!/bin/sh\n", stat.S_IRUSR), log)


def test_a_folder(tmp_path: Path, log: Path) -> None:
    assert "Permission denied" in told(tmp_path, log)


def test_a_file_that_is_no_program(tmp_path: Path, log: Path) -> None:
    assert "Exec format error" in told(script(tmp_path, "\x7fnonsense"), log)


def test_a_program_that_is_not_python(log: Path) -> None:
    assert "ended with exit code 0 before it had imported vLLM" in told("/bin/true", log)
    assert "ended with exit code 1 before it had imported vLLM" in told("/bin/false", log)


def test_a_program_s_last_words_are_shown(tmp_path: Path, log: Path) -> None:
    python = script(tmp_path, "#!/bin/sh\necho what is -m >&2\nkill -9 $$\n")
    words = told(python, log)
    assert "ended by SIGKILL before" in words
    assert words.endswith("template.log:\nwhat is -m")


def test_a_program_that_never_says_anything_is_killed(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int | None] = []
    close = Template.close

    def closed(self: Template) -> None:
        close(self)
        ended.append(self._process.returncode)

    monkeypatch.setattr(Template, "close", closed)
    python = script(tmp_path, "#!/bin/sh\nexec sleep 1000\n")
    assert "has not imported vLLM within 0.1 s" in told(python, log, warm_deadline_s=0.1)
    assert ended == [-signal.SIGKILL]


def test_a_program_is_killed_with_what_it_has_started(tmp_path: Path, log: Path) -> None:
    """A wrapper that does not `exec` its Python leaves it behind otherwise."""
    started = tmp_path / "pid"
    say = """echo '{"type":"hello"}' >&$4"""
    lines = ("#!/bin/bash", f"sleep 1000 & echo $! > '{started}'", say, "wait", "")
    assert "found something else" in told(script(tmp_path, "\n".join(lines)), log)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(started.read_text())).wait(PATIENCE_S)


def test_a_program_that_says_something_else(tmp_path: Path, log: Path) -> None:
    python = script(tmp_path, '#!/bin/bash\necho \'{"type":"hello"}\' >&$4\nexec sleep 1000\n')
    assert "found something else: expected a message" in told(python, log)


def test_a_python_without_vllm(tmp_path: Path, log: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True, with_pip=False)
    words = told(tmp_path / "bare" / "bin" / "python", log)
    assert "vLLM cannot be imported: ModuleNotFoundError: No module named 'vllm'" in words
    assert "tprig doctor" in words


def test_a_vllm_that_cannot_be_imported(tmp_path: Path, log: Path) -> None:
    broken = overlay(
        tmp_path, **{"__init__.py": "raise OSError('libcudart.so.13: no such file')\n"}
    )
    assert "OSError: libcudart.so.13: no such file" in told(sys.executable, log, overlay=broken)


def test_a_vllm_that_crashes_as_it_is_imported(tmp_path: Path, log: Path) -> None:
    broken = overlay(tmp_path, **{"__init__.py": "import os\nos.abort()\n"})
    assert "ended by SIGABRT before" in told(sys.executable, log, overlay=broken)


def test_a_failed_start_leaves_no_descriptor(tmp_path: Path, log: Path) -> None:
    told("/bin/false", log)
    before = descriptors()
    told("/bin/false", log)
    told(tmp_path / "none", log)
    assert descriptors() == before


# --- what is imported ------------------------------------------------------------------------


def test_the_overlay_comes_first(warm: Template, tmp_path: Path) -> None:
    assert warm.warm.vllm_version == "9.9"
    assert warm.warm.vllm_path == str(tmp_path / "overlay" / "vllm")
    assert warm.warm_s > 0


def test_the_working_directory_is_no_place_to_import_from(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a checkout of vLLM, and not the one under test."""
    checkout = tmp_path / "checkout"
    (checkout / "vllm").mkdir(parents=True)
    (checkout / "vllm" / "__init__.py").write_text("raise ImportError('the wrong one')\n")
    monkeypatch.chdir(checkout)
    started = Template(sys.executable, overlay(tmp_path), {}, log)
    started.close()
    assert started.warm.vllm_version == "9.9"


def test_what_the_user_has_on_the_path_stays_there(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text('VERSION = "from mine"\n')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    text = "from mine import VERSION as __version__\n"
    started = Template(sys.executable, overlay(tmp_path, **{"__init__.py": text}), {}, log)
    started.close()
    assert started.warm.vllm_version == "from mine"


# --- forking ---------------------------------------------------------------------------------


def answer(child: Child) -> messages.FromHost | int:
    wire: Wire[messages.FromHost] = Wire(child.channel, messages.FromHost)
    message = wire.receive(PATIENCE_S)
    with pytest.raises(PeerGoneError):
        wire.receive(PATIENCE_S)
    wire.close()
    return message


def test_a_host_is_forked_answers_and_ends(warm: Template, tmp_path: Path) -> None:
    child = warm.fork(request("e1", tmp_path))
    message = answer(child)
    assert isinstance(message, messages.Refused)
    assert message.error == "ModuleNotFoundError"
    assert warm.exit_code(child.pid, PATIENCE_S) == 1
    # Asked again, as by who crashed and then stops.
    assert warm.exit_code(child.pid, 0.0) == 1
    assert "ModuleNotFoundError" in (tmp_path / "e1.log").read_text()


def test_a_request_may_be_large(warm: Template, tmp_path: Path) -> None:
    asked = request("e1", tmp_path) | {"engine_args": {"text": "x" * (1 << 20)}}
    assert isinstance(answer(warm.fork(asked)), messages.Refused)
    assert isinstance(answer(warm.fork(request("e2", tmp_path))), messages.Refused)


def test_hosts_are_forked_by_many_threads(warm: Template, tmp_path: Path) -> None:
    def one(index: int) -> int | None:
        child = warm.fork(request(f"e{index}", tmp_path))
        assert isinstance(answer(child), messages.Refused)
        return warm.exit_code(child.pid, PATIENCE_S)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(one, range(12))) == [1] * 12


def test_a_process_that_is_none_of_its_hosts(warm: Template) -> None:
    assert warm.exit_code(os.getpid(), 0.05) is None


def test_its_hosts_end_with_it(warm: Template, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    # Opening the log for writing waits until somebody reads: the host is held there.
    child = warm.fork(request("e1", tmp_path) | {"log": str(tmp_path / "log")})
    descriptor = os.pidfd_open(child.pid)
    assert poll([descriptor], 0) == []
    warm.close()
    assert poll([descriptor], PATIENCE_S) == [descriptor]
    os.close(descriptor)
    child.channel.close()
    assert not warm.alive()


def test_a_template_that_was_killed(warm: Template, tmp_path: Path) -> None:
    assert warm.alive()
    assert warm.ending(0.0) is None
    os.kill(warm.pid, signal.SIGKILL)
    with pytest.raises(TemplateError, match=rf"warm template .pid {warm.pid}. ended by SIGKILL"):
        warm.fork(request("e1", tmp_path))
    assert not warm.alive()
    assert warm.ending(0.0) == "ended by SIGKILL"
    assert warm.exit_code(1, PATIENCE_S) is None


def test_a_template_that_is_stopped(
    warm: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "FORK_DEADLINE_S", 0.05)
    monkeypatch.setattr(template, "STOP_DEADLINE_S", 0.05)
    os.kill(warm.pid, signal.SIGSTOP)
    with pytest.raises(TemplateError, match="does not answer: no message within"):
        warm.fork(request("e1", tmp_path))
    warm.close()
    assert warm.ending(0.0) == "ended by SIGKILL"


FAILS = """#!{python}
import json, socket, sys
control = socket.socket(fileno=int(sys.argv[4]))
def say(**message):
    control.sendall(json.dumps(message).encode() + b"\\n")
say(type="warm", pid=1, vllm_version="1", vllm_path="p")
while data := socket.recv_fds(control, 1 << 16, 1)[0]:
    say(type="failed", error="BlockingIOError", message="Resource temporarily unavailable")
"""


def test_a_template_that_cannot_fork_lives_on(tmp_path: Path, log: Path) -> None:
    limited = Template(str(script(tmp_path, FAILS.format(python=sys.executable))), None, {}, log)
    for _ in range(2):
        with pytest.raises(TemplateError, match="cannot fork a host: BlockingIOError: Resource"):
            limited.fork(request("e1", tmp_path))
    assert limited.alive()
    limited.close()


def test_closing_twice_is_no_error(warm: Template) -> None:
    warm.close()
    warm.close()
    assert warm.ending(0.0) == "ended with exit code 0"


def test_an_interrupted_start_leaves_no_process(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def interrupt(self: Template, deadline_s: float) -> messages.Warm:
        pids.append(self._process.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(Template, "_await_warm", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Template(str(script(tmp_path, "#!/bin/sh\nexec sleep 1000\n")), None, {}, log)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_an_interrupt_while_waiting_for_a_host_closes_its_channel(
    warm: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Template, engine: str) -> int:
        raise KeyboardInterrupt

    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(Template, "_await_fork", interrupt)
        with pytest.raises(KeyboardInterrupt):
            warm.fork(request("e1", tmp_path))
    assert descriptors() == before
    assert isinstance(answer(warm.fork(request("e2", tmp_path))), messages.Refused)


def test_threads_share_what_one_of_them_heard(warm: Template, tmp_path: Path) -> None:
    """Each asks for one host's end; either may hear of both."""
    children = [warm.fork(request(f"e{index}", tmp_path)) for index in range(2)]
    codes: dict[int, int | None] = {}

    def ask(child: Child) -> None:
        codes[child.pid] = warm.exit_code(child.pid, PATIENCE_S)

    threads = [threading.Thread(target=ask, args=(child,)) for child in reversed(children)]
    for thread in threads:
        thread.start()
    for child in children:
        answer(child)
    for thread in threads:
        thread.join()
    assert codes == {child.pid: 1 for child in children}
