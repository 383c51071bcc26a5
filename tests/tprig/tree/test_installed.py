"""Where an interpreter has vLLM, asked without importing it."""

import os
from pathlib import Path

import pytest

from tests.tprig.tree.conftest import Stage
from tprig.tree import TreeError, process
from tprig.tree.installed import Installed, ask, describe


def test_a_build_says_where_it_is_and_what_it_was_built_from(stage: Stage) -> None:
    stage.build_says("1.2.4.dev3+gabcdef012", "gabcdef0123456789")
    found = ask(stage.python())
    folder = stage.site / "vllm"
    assert found == Installed(folder, "1.2.4.dev3+gabcdef012", "abcdef0123456789")
    assert found.revisions == {
        "abcdef0123456789": "abcdef0123456789",
        "v1.2.4.dev3+gabcdef012": "refs/tags/v1.2.4.dev3+gabcdef012",
        "v1.2.4.dev3": "refs/tags/v1.2.4.dev3",
    }


def test_without_a_version_file_the_distribution_tells(stage: Stage) -> None:
    (stage.site / "vllm/_version.py").unlink()
    assert ask(stage.python()) == Installed(stage.site / "vllm", "1.2.3", None)


@pytest.mark.parametrize(
    ("text", "version", "commit"),
    [
        ("", "0", None),
        ("__version__ = version = '0.32.0'\n__commit_id__ = commit_id = None\n", "0.32.0", None),
        ("version: str\n__version__: str\n__version__ = '2'\n", "2", None),
        ("__version__ = version = '2'\n__commit_id__ = commit_id = 'g1234567'\n", "2", "1234567"),
        ('__commit_id__ = "g1234567"\n', "0", "1234567"),
        ("__version__ = '2+g12345.d20260101'\n", "2+g12345.d20260101", None),
        ("__version__ = '2.dev1+cpu.g1234567'\n", "2.dev1+cpu.g1234567", "1234567"),
        ("__version__ = '2+gfx90a0000z'\n", "2+gfx90a0000z", None),
    ],
)
def test_what_a_version_file_says(
    tmp_path: Path, text: str, version: str, commit: str | None
) -> None:
    (tmp_path / "_version.py").write_text(text)
    assert describe(tmp_path, "0") == Installed(tmp_path, version, commit)


def test_a_build_may_say_nothing(tmp_path: Path) -> None:
    assert describe(tmp_path, None).revisions == {}


def test_vllm_is_not_imported(stage: Stage) -> None:
    (stage.site / "vllm/__init__.py").write_text("raise SystemExit('imported')\n")
    assert ask(stage.python()).version == "1.2.3"


def test_the_current_folder_is_not_looked_in(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stage.work)
    assert ask(stage.python()).folder == stage.site / "vllm"


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "interpreter"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("echo broken >&2; exit 3", "broken"),
        ("exit 3", "no reason was given"),
        ("echo 'not json'", "it finds no package vllm"),
        ("echo '[1]'", "it finds no package vllm"),
        ("""echo '{"origin": null}'""", "it finds no package vllm"),
        ("exit 0", "it finds no package vllm"),
    ],
)
def test_an_interpreter_without_vllm_is_told(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(TreeError, match=f"found:    {found}\n(?s:.*)--tprig-vllm-python"):
        ask(script(tmp_path, text))


def test_a_missing_interpreter_is_told(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match=f"expected: {tmp_path}/python to run"):
        ask(str(tmp_path / "python"))


def test_an_interpreter_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "DEADLINE_S", 0.5)
    pid = tmp_path / "pid"
    text = f'sleep 600 & echo $! > "{pid}"; wait'
    with pytest.raises(TreeError, match=r"no end within 0\.5 s"):
        ask(script(tmp_path, text))
    child = int(pid.read_text())
    # Killed with its group; it may still be waiting to be reaped.
    status = Path(f"/proc/{child}/status")
    assert not status.exists() or "Z (zombie)" in status.read_text(), os.getpid()
