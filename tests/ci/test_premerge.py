"""Pre-merge checks, on small trees that break one of them each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ci import app, events, ledger
from ci.premerge import Request, premerge, report, worst
from tests.ci.toy import git

SIGNED = "Change it\n\nSigned-off-by: A <a@example.com>"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "vllm").mkdir(parents=True)
    (tree / "vllm/a.py").write_text("A = 1\n")
    git(tree, "init", "-q", "-b", "main")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "base")
    git(tree, "checkout", "-qb", "feature")
    return tree


def change(tree: Path, text: str = "A = 2\n", message: str = SIGNED) -> None:
    (tree / "vllm/a.py").write_text(text)
    git(tree, "commit", "-qam", message)


def standings(tree: Path, upstream: tuple[str, ...] = ()) -> dict[str, str]:
    request = Request(tree, "main", tree, upstream=upstream, engines=False)
    made = premerge(request, tree.parent / "premerge")
    assert len(report(made).splitlines()) >= len(made)
    return {check.name: check.standing for check in made}


SOUND = {"compileall": "pass", "diff-check": "pass", "sign-off": "pass", "pre-commit": "pass"}


def test_a_sound_change_passes_and_leaves_nothing_in_the_tree(tree: Path) -> None:
    change(tree)
    assert standings(tree) == SOUND
    assert git(tree, "status", "--porcelain", "--ignored") == ""
    stream = events.read(tree.parent / "premerge" / events.EVENTS_FILE)
    attempt = ledger.attempt_of(stream)
    assert {test: e.outcome for test, e in attempt.finished.items()} == {
        f"premerge::{name}": "passed" for name in SOUND
    }


@pytest.mark.parametrize(
    ("text", "message", "broken"),
    [
        ("A = (\n", SIGNED, "compileall"),
        ("A = 2  \n", SIGNED, "diff-check"),
        ("<<<<<<< HEAD\nA = 2\n", SIGNED, "diff-check"),
        ("A = 2\n", "Change it", "sign-off"),
        ("A = 2\n", "Change it\n\nSigned-off-by: nobody", "sign-off"),
    ],
)
def test_each_check_finds_what_it_is_for(tree: Path, text: str, message: str, broken: str) -> None:
    change(tree, text, message)
    assert standings(tree)[broken] == "fail"


def test_every_commit_is_to_be_signed_off(tree: Path) -> None:
    change(tree, "A = 2\n", "Not signed")
    change(tree, "A = 3\n")
    assert standings(tree)["sign-off"] == "fail"


def test_a_change_without_a_commit_has_nothing_signed_off(tree: Path) -> None:
    (tree / "vllm/a.py").write_text("A = 4\n")
    assert standings(tree)["sign-off"] == "unknown"


def test_hooks_that_cannot_be_run_leave_it_open(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(tree)
    (tree / ".pre-commit-config.yaml").write_text("repos: []\n")
    monkeypatch.setattr("shutil.which", lambda _name: None)
    assert standings(tree)["pre-commit"] == "unknown"


def test_hooks_of_the_tree_are_run_on_what_was_changed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(tree)
    (tree / ".pre-commit-config.yaml").write_text("repos: []\n")
    hook = tmp_path / "pre-commit"
    hook.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called\nexit 1\n')
    hook.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _name: str(hook))
    assert standings(tree)["pre-commit"] == "fail"
    called = (tmp_path / "called").read_text()
    assert called == "run --files .pre-commit-config.yaml vllm/a.py\n"


def test_tests_of_the_tree_are_run_where_they_are_named(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    change(tree)
    assert standings(tree, ("no_such_test.py",))["upstream-tests"] == "fail"


def test_the_command_exits_by_the_worst(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(tree, message="Not signed")
    words = ["premerge", "--tree", str(tree), "--base", "main", "--no-engines"]
    output = ["--output", str(tmp_path / "out"), "--python", sys.executable]
    assert app.main([*words, *output]) == 1
    assert "fail     sign-off" in capsys.readouterr().out
    assert app.main(["premerge", "--tree", str(tmp_path / "none"), "--base", "x"]) == 4
    assert worst([]) == "unknown"
