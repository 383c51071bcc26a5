"""Which revision a build is of, and what a tree may not change."""

import shutil
from pathlib import Path

import pytest

from tests.tprig.tree.conftest import Stage, git, state
from tprig.tree import TreeError, overlay

# --- the base --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "version", ["1.2.3", "1.2.3+cpu", "1.2.3rc1", "1.2.3rc1+cu129", "1.2.3.post1"]
)
def test_a_tag_names_the_base(stage: Stage, version: str) -> None:
    stage.build_says(version)
    stage.git("tag", "-f", f"v{version.partition('+')[0]}")
    stage.write("vllm/a.py", "WHAT = 'later'\n")
    stage.commit()
    assert stage.overlay().base == stage.git("rev-parse", "HEAD~1")


def test_a_tag_is_preferred_to_a_branch_of_its_name(stage: Stage) -> None:
    tagged = stage.git("rev-parse", "v1.2.3")
    stage.git("checkout", "-q", "-b", "v1.2.3")
    stage.write("vllm/a.py", "WHAT = 'later'\n")
    stage.commit()
    assert stage.overlay().base == tagged


def test_a_commit_says_more_than_a_tag(stage: Stage) -> None:
    stage.write("vllm/a.py", "WHAT = 'built'\n")
    built = stage.commit()
    shutil.copy(stage.work / "vllm/a.py", stage.site / "vllm/a.py")
    for version, commit in [
        ("1.2.3", f"g{built}"),
        ("1.2.3", f"g{built[:9]}"),
        (f"1.2.4.dev1+g{built[:9]}", None),
        (f"1.2.4.dev1+g{built[:9]}.d20261201", None),
        (f"1.2.4rc1.dev1+g{built[:9]}.cu129", None),
    ]:
        stage.build_says(version, commit)
        assert (stage.overlay().base, stage.overlay().changed) == (built, ())


def test_a_commit_that_the_tree_lacks_gives_way_to_the_tag(stage: Stage) -> None:
    stage.build_says("1.2.3", "gdeadbeef00")
    assert stage.overlay().base == stage.git("rev-parse", "v1.2.3")


def test_no_base_is_refused(stage: Stage) -> None:
    stage.build_says("1.2.4.dev1+gdeadbeef00")
    with pytest.raises(TreeError) as caught:
        stage.overlay()
    text = str(caught.value)
    assert "no deadbeef00 or v1.2.4.dev1+gdeadbeef00 or v1.2.4.dev1 in" in text
    assert f"git -C '{stage.work}' fetch --tags`" in text
    assert "TPRIG_VLLM_BASE" in text


def test_a_shallow_clone_without_the_base_is_refused(stage: Stage, tmp_path: Path) -> None:
    stage.write("vllm/a.py", "WHAT = 'later'\n")
    stage.commit()
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth=1", "--no-tags", f"file://{stage.work}", str(shallow))
    with pytest.raises(TreeError, match=r"a shallow clone\n.*\n.*fetch --tags --unshallow"):
        overlay(str(shallow), stage.python(), stage.root)


def test_the_base_may_be_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.git("tag", "-d", "v1.2.3")
    base = stage.git("rev-parse", "HEAD")
    stage.write("vllm/a.py", "WHAT = 'later'\n")
    stage.commit()
    assert stage.overlay(base="HEAD~1").base == base
    assert stage.overlay("HEAD", base="main^").base == base
    monkeypatch.setenv("TPRIG_VLLM_BASE", base[:8])
    assert stage.overlay().base == base
    monkeypatch.setenv("TPRIG_VLLM_BASE", "nowhere")
    with pytest.raises(TreeError, match="no nowhere in"):
        stage.overlay()
    assert stage.overlay(base=base).base == base


# --- what decides the binaries and dependencies ----------------------------------------------

DECISIVE = [
    "csrc/kernel.cu",
    "csrc/sub/other.cu",
    "cmake/utils.cmake",
    "rust/src/lib.rs",
    "rust-toolchain.toml",
    "requirements/common.txt",
    "CMakeLists.txt",
    "setup.py",
]


@pytest.mark.parametrize("name", [*DECISIVE, "csrc/new.cu", "requirements-new.txt"])
def test_what_decides_the_binaries_may_not_differ(stage: Stage, name: str) -> None:
    stage.write(name, "other\n")
    found = "modified" if name in DECISIVE else "untracked"
    with pytest.raises(TreeError, match=rf"as in v1\.2\.3.*\nfound:    {name} \({found}\)\n"):
        stage.overlay()
    stage.overlay("HEAD")
    committed = stage.commit()
    found = "modified" if name in DECISIVE else "added"
    for revision in (None, committed):
        with pytest.raises(TreeError, match=rf"{name} \({found}\)"):
            stage.overlay(revision)


def test_a_deletion_or_a_rename_is_a_difference(stage: Stage) -> None:
    stage.git("mv", "csrc/kernel.cu", "csrc/renamed.cu")
    with pytest.raises(TreeError, match=r"csrc/kernel.cu \(deleted\), csrc/renamed.cu \(added\)"):
        stage.overlay()
    stage.git("reset", "-q", "--hard")
    (stage.work / "cmake/utils.cmake").unlink()
    with pytest.raises(TreeError, match=r"cmake/utils.cmake \(deleted\)"):
        stage.overlay()


def test_a_repository_within_the_kernels_is_a_difference(stage: Stage) -> None:
    stage.write("csrc/vendored/x.cu", "\n")
    git(stage.work / "csrc/vendored", "init", "-q")
    git(stage.work / "csrc/vendored", "add", ".")
    git(stage.work / "csrc/vendored", "commit", "-q", "-m", "x")
    with pytest.raises(TreeError, match=r"csrc/vendored/ \(untracked\)"):
        stage.overlay()


def test_what_git_ignores_is_no_difference(stage: Stage) -> None:
    stage.write("csrc/built.so", "\n")
    stage.overlay()


def test_what_was_changed_back_is_no_difference(stage: Stage) -> None:
    stage.write("csrc/kernel.cu", "// other\n")
    stage.commit()
    stage.write("csrc/kernel.cu", "// kernel\n")
    stage.overlay()


def test_only_the_first_few_differences_are_named(stage: Stage) -> None:
    for number in range(8):
        stage.write(f"csrc/new{number}.cu", "\n")
    with pytest.raises(TreeError, match=r"new4.cu \(untracked\) and 3 more\n"):
        stage.overlay()


def test_names_cannot_forge_lines(stage: Stage) -> None:
    stage.write("csrc/x\nremedy:   none.cu", "\n")
    with pytest.raises(TreeError, match=r"csrc/x\\nremedy:   none.cu \(untracked\)"):
        stage.overlay()


# --- states of a work tree -------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_flags_of_the_index_hide_nothing(stage: Stage, flag: str) -> None:
    stage.git("update-index", flag, "vllm/a.py", "csrc/kernel.cu")
    stage.write("vllm/a.py", "WHAT = 'hidden'\n")
    before = state(stage.work)
    laid = stage.overlay()
    assert stage.run(laid, "import vllm; print(vllm.WHAT)") == "hidden"
    assert (laid.changed, laid.dirty) == (("vllm/a.py",), True)
    stage.write("csrc/kernel.cu", "// hidden\n")
    with pytest.raises(TreeError, match="csrc/kernel"):
        stage.overlay()
    stage.write("csrc/kernel.cu", "// kernel\n")
    after = state(stage.work)
    assert after.pop("csrc/kernel.cu")[0] == before.pop("csrc/kernel.cu")[0]
    assert after == before


def test_a_sparse_checkout_is_whole(stage: Stage) -> None:
    stage.write("vllm/pkg/m5.py", "NUMBER = 'five'\n")
    stage.commit()
    stage.git("sparse-checkout", "set", "--no-cone", "/vllm/*.py")
    assert not (stage.work / "csrc").exists()
    laid = stage.overlay()
    assert (laid.changed, laid.dirty) == (("vllm/pkg/m5.py",), False)
    assert stage.run(laid, "import vllm.pkg.m5 as m; print(m.NUMBER)") == "five"


def test_a_conflict_is_taken_as_it_stands(stage: Stage) -> None:
    stage.git("checkout", "-q", "-b", "other")
    stage.write("vllm/a.py", "WHAT = 'theirs'\n")
    stage.commit()
    stage.git("checkout", "-q", "main")
    stage.write("vllm/a.py", "WHAT = 'ours'\n")
    stage.commit()
    with pytest.raises(Exception, match="merge"):
        stage.git("merge", "-q", "other")
    laid = stage.overlay()
    assert "<<<<<<<" in (laid.folder / "vllm/a.py").read_text()
    assert (laid.changed, laid.dirty) == (("vllm/a.py",), True)


def test_what_git_forgot_but_lies_there_is_taken(stage: Stage) -> None:
    stage.git("rm", "-q", "--cached", "vllm/gone.py")
    stage.write("vllm/gone.py", "HERE = 'still'\n")
    laid = stage.overlay()
    assert stage.run(laid, "import vllm.gone as g; print(g.HERE)") == "still"


def test_a_file_that_is_announced_is_taken(stage: Stage) -> None:
    stage.write("vllm/announced.py", "HERE = 1\n")
    stage.git("add", "-N", "vllm/announced.py")
    assert (stage.overlay().folder / "vllm/announced.py").read_text() == "HERE = 1\n"


def test_another_format_of_ids(stage: Stage) -> None:
    shutil.rmtree(stage.work / ".git")
    stage.git("init", "-q", "-b", "main", "--object-format=sha256")
    stage.commit()
    stage.git("tag", "v1.2.3")
    stage.write("vllm/a.py", "WHAT = 'later'\n")
    laid = stage.overlay()
    assert (laid.changed, laid.patched, len(laid.base)) == (("vllm/a.py",), (), 64)


@pytest.mark.parametrize("link", ["a.py", "/etc/hostname"])
def test_a_link_in_the_package_is_refused(stage: Stage, link: str) -> None:
    (stage.work / "vllm/link.py").symlink_to(link)
    commit = stage.commit()
    for revision in (None, commit):
        with pytest.raises(TreeError, match="symbolic links or submodules: vllm/link"):
            stage.overlay(revision)


# --- what is no vLLM tree --------------------------------------------------------------------


@pytest.mark.parametrize("revision", ["nope", "-x", "--all", "HEAD:vllm", "v1.2.3^{tree}", "a b"])
def test_an_unknown_revision_is_refused(stage: Stage, revision: str) -> None:
    with pytest.raises(TreeError, match="no commit of that name in"):
        stage.overlay(revision)


def test_what_is_no_folder_is_refused(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(TreeError, match=f"found:    no folder {path}\n"):
            overlay(str(path), stage.python(), stage.root)


def test_what_is_no_work_tree_is_refused(stage: Stage, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    git(tmp_path, "clone", "-q", "--bare", str(stage.work), str(bare))
    for path, found in [
        (stage.site, "not a git repository"),
        (bare, "must be run in a work tree"),
        (stage.work / "vllm", "a folder within the work tree"),
    ]:
        with pytest.raises(TreeError, match=found):
            overlay(str(path), stage.python(), stage.root)


def test_a_repository_without_vllm_or_without_a_commit_is_refused(
    stage: Stage, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    with pytest.raises(TreeError, match="expected: the revision 'HEAD'"):
        overlay(str(other), stage.python(), stage.root)
    (other / "README").touch()
    git(other, "add", ".")
    git(other, "commit", "-q", "-m", "x")
    with pytest.raises(TreeError, match="no vllm/__init__"):
        overlay(str(other), stage.python(), stage.root)
