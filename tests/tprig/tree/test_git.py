"""That git is only read, whatever surrounds it."""

import os
from pathlib import Path

import pytest

from tests.tprig.tree.conftest import Stage, files, git, state
from tprig.tree import TreeError, overlay
from tprig.tree.git import Git


def test_a_stale_index_is_not_refreshed(stage: Stage) -> None:
    stage.write("vllm/a.py", "WHAT = 'edited'\n")
    for name in ("vllm/pkg/m1.py", "csrc/kernel.cu"):
        os.utime(stage.work / name, ns=(0, 0))
    before = state(stage.work)
    assert stage.overlay().changed == ("vllm/a.py",)
    assert state(stage.work) == before


def test_a_monitor_of_files_is_not_asked(stage: Stage, tmp_path: Path) -> None:
    monitor = tmp_path / "monitor"
    # It says that nothing has changed, whatever has.
    monitor.write_text(f"#!/bin/sh\ntouch '{tmp_path}/asked'\nprintf 'token\\0'\n")
    monitor.chmod(0o755)
    stage.git("config", "core.fsmonitor", str(monitor))
    stage.git("update-index", "--fsmonitor")
    stage.git("status")
    (tmp_path / "asked").unlink()
    stage.write("vllm/a.py", "WHAT = 'unseen'\n")
    assert stage.overlay().changed == ("vllm/a.py",)
    assert not (tmp_path / "asked").exists()


def test_an_edit_within_the_grain_of_the_clock_is_seen(stage: Stage) -> None:
    stage.git("config", "core.trustctime", "false")
    source, index = stage.work / "vllm/a.py", stage.work / ".git/index"
    os.utime(source, (1, 1))
    stage.git("update-index", "--refresh")
    source.write_text(source.read_text().replace("base", "soap"))
    for path in (source, index):
        os.utime(path, (1, 1))
    assert stage.overlay().changed == ("vllm/a.py",)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("core.splitIndex", "true"),
        ("core.untrackedCache", "true"),
        ("diff.autoRefreshIndex", "false"),
        ("diff.noprefix", "true"),
        ("diff.renames", "copies"),
        ("diff.external", "/bin/false"),
        ("status.showUntrackedFiles", "no"),
        ("core.quotePath", "true"),
    ],
)
def test_settings_of_the_repository_do_not_matter(stage: Stage, setting: str, value: str) -> None:
    stage.git("config", setting, value)
    stage.git("config", "splitIndex.maxPercentChange", "0")
    stage.git("update-index", "--refresh")
    os.utime(stage.work / "csrc/kernel.cu", ns=(0, 0))
    stage.write("vllm/pkg/m1.py", "NUMBER = 'one'\n")
    stage.git("mv", "vllm/gone.py", "vllm/\u00fcber.py")
    stage.write("vllm/new.py", "\n")
    before = state(stage.work)
    laid = stage.overlay()
    changed = ["gone.py", "new.py", "pkg/m1.py", "\u00fcber.py"]
    assert laid.changed == tuple(f"vllm/{name}" for name in changed)
    assert laid.dirty
    assert state(stage.work) == before


def test_the_variables_of_a_hook_do_not_lead_elsewhere(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q", "elsewhere")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere/.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "elsewhere/.git/index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "elsewhere"))
    stage.write("vllm/a.py", "WHAT = 'edited'\n")
    assert stage.overlay().changed == ("vllm/a.py",)
    assert not (tmp_path / "elsewhere/.git/index").exists()


def test_a_linked_work_tree_and_a_link_to_it(stage: Stage, tmp_path: Path) -> None:
    linked, link = tmp_path / "linked", tmp_path / "link"
    stage.git("worktree", "add", "-q", "-b", "side", str(linked))
    link.symlink_to(linked)
    (linked / "vllm/a.py").write_text("WHAT = 'linked'\n")
    for path in (linked, link):
        laid = overlay(str(path), stage.python(), stage.root)
        assert (laid.changed, laid.dirty) == (("vllm/a.py",), True)


def test_a_partial_clone_fetches_nothing(stage: Stage, tmp_path: Path) -> None:
    stage.write("vllm/a.py", "WHAT = 'one'\n")
    stage.commit()
    stage.write("vllm/a.py", "WHAT = 'two'\n")
    stage.commit()
    stage.git("config", "uploadpack.allowFilter", "true")
    partial = tmp_path / "partial"
    git(tmp_path, "clone", "-q", "--filter=blob:none", f"file://{stage.work}", str(partial))
    laid = overlay(str(partial), stage.python(), stage.root)
    assert files(laid.folder)["vllm/a.py"] == "WHAT = 'two'\n"
    before = state(partial)
    with pytest.raises(TreeError, match="nothing is fetched"):
        overlay(f"{partial}@HEAD~1", stage.python(), stage.root)
    assert state(partial) == before


def test_blobs_come_in_order_whatever_they_hold(stage: Stage) -> None:
    contents = [b"", b"\n", b"no newline", b"\0\xff\n\n", b"x" * 100_000]
    for number, content in enumerate(contents):
        (stage.work / f"blob{number}").write_bytes(content)
    ids = [stage.git("hash-object", "-w", f"blob{number}") for number in range(len(contents))]
    assert Git(stage.work).blobs([*ids, ids[1]]) == [*contents, contents[1]]
    with pytest.raises(TreeError, match="it is not there"):
        Git(stage.work).blobs([ids[0], "0" * 39 + "1"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_repository_of_someone_else_is_told_in_the_words_of_git(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    os.chown(stage.work, 1, 1)
    os.chown(stage.work / ".git", 1, 1)
    with pytest.raises(TreeError, match="fatal: detected dubious ownership"):
        stage.overlay()


def test_no_git_is_told(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TreeError, match="git to run\nfound:    cannot be started: No such file"):
        stage.overlay()
