"""A tree laid over a build: what is under test, and that nothing else is touched."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tprig.tree.conftest import GENERATED, NOT_SHIPPED, Stage, files, git, made, state
from tprig.tree import TreeError, overlay, parse
from tprig.tree.content import Content

# --- PATH and PATH@REV -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "revision"),
    [
        ("{there}", "{there}", None),
        ("{there}@v1", "{there}", "v1"),
        ("{there}@HEAD@{1}", "{there}", "HEAD@{1}"),
        ("{there}@@", "{there}", "@"),
        ("{there}@home", "{there}@home", None),
        ("{there}@home@v1", "{there}@home", "v1"),
        ("{there}@home@a@b", "{there}@home", "a@b"),
        ("/absent/folder", "/absent/folder", None),
        ("/absent/a@folder@v1", "/absent/a@folder", "v1"),
        ("~nobody-of-that-name/a", "{cwd}/~nobody-of-that-name/a", None),
    ],
)
def test_a_path_may_hold_an_at(tmp_path: Path, text: str, path: str, revision: str | None) -> None:
    there = tmp_path / "a tree"
    there.mkdir()
    (tmp_path / "a tree@home").mkdir()
    places = {"there": str(there), "cwd": str(Path.cwd())}

    def placed(pattern: str) -> str:
        return pattern.replace("{there}", places["there"]).replace("{cwd}", places["cwd"])

    assert parse(placed(text)) == (Path(placed(path)), revision)


def test_the_home_folder_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "vllm").mkdir()
    assert parse("~/vllm@main") == (tmp_path / "vllm", "main")


def test_a_relative_path_is_taken_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("vllm@main") == (tmp_path / "vllm", "main")


@pytest.mark.parametrize(("text", "lacks"), [("", "path"), ("@v1", "path"), ("/a@", "revision")])
def test_neither_may_be_empty(text: str, lacks: str) -> None:
    with pytest.raises(TreeError, match=f"names no {lacks}"):
        parse(text)


# --- what is laid over -----------------------------------------------------------------------


def test_a_change_of_python_is_under_test_with_the_installed_binaries(stage: Stage) -> None:
    stage.write("vllm/a.py", "WHAT = 'the change'\n")
    commit = stage.commit()
    laid = stage.overlay()
    code = (
        "import vllm, pathlib, vllm.flash.interface as f, vllm.pkg.m7 as m, vllm._version as v\n"
        "here = pathlib.Path(vllm.__file__).parent\n"
        "binary = (here / '_C.abi3.so').read_text()\n"
        "print(here, vllm.WHAT, f.MADE_BY, m.NUMBER, v.version, binary, sep='|')"
    )
    expected = f"{laid.folder}/vllm|the change|the build|7|1.2.3|binary"
    assert stage.run(laid, code) == expected
    assert (laid.commit, laid.base) == (commit, stage.git("rev-parse", "v1.2.3"))
    assert (laid.tree, laid.path, laid.dirty) == (str(stage.work), stage.work, False)
    assert (laid.changed, laid.patched) == (("vllm/a.py",), ())


def test_an_unchanged_tree_gives_what_is_installed(stage: Stage) -> None:
    laid = stage.overlay()
    # What the build does not ship is in the tree, and comes from there.
    notes = (stage.work / NOT_SHIPPED).read_text()
    assert files(laid.folder) == {**files(stage.site), NOT_SHIPPED: notes}
    assert (laid.changed, laid.dirty) == ((), False)


def test_binaries_are_linked_and_sources_copied(stage: Stage) -> None:
    laid = stage.overlay()
    package = laid.folder / "vllm"
    assert (package / "_C.abi3.so").readlink() == stage.site / "vllm/_C.abi3.so"
    assert not (package / "a.py").is_symlink()
    assert not (package / "a.py").stat().st_mode & 0o222
    assert os.access(package / "tool.sh", os.X_OK)
    assert not os.access(package / "a.py", os.X_OK)
    assert not package.is_symlink()
    assert laid.folder.stat().st_mode & 0o055 == 0o055


def test_a_source_finds_changed_data_beside_where_it_really_lies(stage: Stage) -> None:
    stage.write("vllm/pkg/data.json", '{"from": "tree"}\n')
    code = "import vllm.pkg.where as w; print(w.DATA['from'])"
    assert stage.run(stage.overlay(), code) == "tree"


def test_deleted_new_and_renamed_files(stage: Stage) -> None:
    stage.git("rm", "-q", "vllm/gone.py")
    stage.git("mv", "vllm/pkg/m0.py", "vllm/pkg/renamed.py")
    stage.write("vllm/added/__init__.py", "NEW = 1\n")
    stage.commit()
    laid = stage.overlay()
    held = files(laid.folder)
    assert held["vllm/added/__init__.py"] == "NEW = 1\n"
    assert held["vllm/pkg/renamed.py"] == "NUMBER = 0\n"
    assert not held.keys() & {"vllm/gone.py", "vllm/pkg/m0.py"}
    expected = ["added/__init__.py", "gone.py", "pkg/m0.py", "pkg/renamed.py"]
    assert laid.changed == tuple(f"vllm/{name}" for name in expected)
    code = (
        "import importlib.util as u\n"
        "print([u.find_spec(f'vllm.{n}') is None for n in ('gone', 'pkg.m0', 'pkg.renamed')])"
    )
    assert stage.run(laid, code) == "[True, True, False]"


def test_a_deleted_package_is_not_even_a_namespace(stage: Stage) -> None:
    shutil.rmtree(stage.work / "vllm/pkg")
    laid = stage.overlay()
    assert not (laid.folder / "vllm/pkg").exists()
    code = "import importlib.util as u; print(u.find_spec('vllm.pkg'))"
    assert stage.run(laid, code) == "None"


def test_a_module_becomes_a_package(stage: Stage) -> None:
    (stage.work / "vllm/a.py").unlink()
    stage.write("vllm/a/__init__.py", "WHAT = 'a package'\n")
    assert stage.run(stage.overlay(), "import vllm; print(vllm.WHAT)") == "a package"


def test_uncommitted_staged_and_untracked_changes_are_taken(stage: Stage) -> None:
    stage.write("vllm/a.py", "WHAT = 'edited'\n")
    stage.write("vllm/staged.py", "STAGED = 1\n")
    stage.git("add", "vllm/staged.py")
    stage.write("vllm/untracked.py", "UNTRACKED = 1\n")
    stage.write("vllm/ignored.so", "not taken\n")
    (stage.work / "vllm/.#a.py").symlink_to("an-editor@host.1")
    laid = stage.overlay()
    assert laid.changed == ("vllm/a.py", "vllm/staged.py", "vllm/untracked.py")
    assert laid.dirty
    assert files(laid.folder)["vllm/a.py"] == "WHAT = 'edited'\n"
    assert not (laid.folder / "vllm/ignored.so").exists()


def test_what_lies_outside_of_the_package_does_not_matter(stage: Stage) -> None:
    stage.write("docs/index.md", "# other docs\n")
    stage.write("scratch.txt", "\n")
    assert (stage.overlay().dirty, stage.overlay().changed) == (False, ())


def test_later_edits_of_the_tree_change_nothing(stage: Stage) -> None:
    stage.write("vllm/a.py", "WHAT = 'first'\n")
    laid = stage.overlay()
    before = files(laid.folder)
    stage.write("vllm/a.py", "WHAT = 'later'\n")
    stage.write("vllm/pkg/m1.py", "NUMBER = 'later'\n")
    assert files(laid.folder) == before
    again = stage.overlay()
    assert again.folder != laid.folder
    assert files(again.folder)["vllm/a.py"] == "WHAT = 'later'\n"


def test_a_revision_is_taken_aside(stage: Stage) -> None:
    stage.write("vllm/a.py", "WHAT = 'committed'\n")
    stage.git("rm", "-q", "vllm/gone.py")
    commit = stage.commit()
    stage.git("reset", "-q", "--hard", "v1.2.3")
    stage.write("vllm/a.py", "WHAT = 'edited'\n")
    stage.write("csrc/kernel.cu", "// edited\n")
    before = state(stage.work)
    laid = stage.overlay(commit[:10])
    assert state(stage.work) == before
    assert (laid.commit, laid.dirty, laid.tree) == (commit, False, f"{stage.work}@{commit[:10]}")
    assert laid.changed == ("vllm/a.py", "vllm/gone.py")
    assert files(laid.folder)["vllm/a.py"] == "WHAT = 'committed'\n"
    assert "vllm/gone.py" not in files(laid.folder)


def test_a_mode_alone_is_a_change(stage: Stage) -> None:
    (stage.work / "vllm/a.py").chmod(0o755)
    commit = stage.commit()
    for laid in (stage.overlay(), stage.overlay(commit)):
        assert laid.changed == ("vllm/a.py",)
        assert os.access(laid.folder / "vllm/a.py", os.X_OK)


NAMES = ["a.py", "gone.py", "pkg/m3.py", "pkg/data.json", "fresh.py", "deep/er/fresh.py"]
EDITS = st.dictionaries(st.sampled_from(NAMES), st.none() | st.text("xy\n", max_size=8), max_size=4)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(committed=EDITS, staged=EDITS, loose=EDITS)
def test_an_overlay_is_the_tree_and_what_the_build_made(
    tmp_path_factory: pytest.TempPathFactory,
    committed: dict[str, str | None],
    staged: dict[str, str | None],
    loose: dict[str, str | None],
) -> None:
    folder = tmp_path_factory.mktemp("property")
    work, site = made(folder)
    stage = Stage(work, site, folder / "overlays")
    edit(work, committed)
    git(work, "add", "-A")
    git(work, "commit", "-q", "--allow-empty", "-m", "change")
    sources = files(work)
    edit(work, staged)
    git(work, "add", "-A")
    edit(work, loose)
    before = state(work)
    assert files(stage.overlay().folder) == {**files(work), **GENERATED}
    assert files(stage.overlay("HEAD").folder) == {**sources, **GENERATED}
    assert state(work) == before


def edit(work: Path, edits: dict[str, str | None]) -> None:
    for name, text in edits.items():
        path = work / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True) if text is None else path.write_text(text)


# --- building it -----------------------------------------------------------------------------


def test_the_same_content_is_the_same_folder(stage: Stage) -> None:
    stage.write("vllm/a.py", "WHAT = 'the change'\n")
    laid = stage.overlay()
    mark = (laid.folder / "vllm/a.py").stat().st_ino
    commit = stage.commit()
    for again in (stage.overlay(), stage.overlay(commit)):
        assert again.folder == laid.folder
    assert (laid.folder / "vllm/a.py").stat().st_ino == mark
    assert [path.name for path in stage.root.iterdir()] == [laid.folder.name]


def test_several_build_at_once(stage: Stage) -> None:
    python = stage.python()
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(overlay, str(stage.work), python, stage.root) for _ in range(4)]
        folders = {job.result().folder for job in jobs}
    assert list(stage.root.iterdir()) == list(folders)
    assert files(folders.pop()).keys() == {*files(stage.site), NOT_SHIPPED}


def test_who_comes_second_takes_what_the_first_has_built(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Content.write

    def slow(content: Content, folder: Path) -> None:
        write(content, folder)
        shutil.copytree(folder, stage.root / content.key)
        (stage.root / content.key / "first").touch()

    monkeypatch.setattr(Content, "write", slow)
    laid = stage.overlay()
    assert (laid.folder / "first").exists()
    assert list(stage.root.iterdir()) == [laid.folder]


def test_a_failure_leaves_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_content: Content, folder: Path) -> None:
        folder.mkdir()
        raise OSError(28, "No space left on device", str(folder / "vllm/a.py"))

    monkeypatch.setattr(Content, "write", full)
    with pytest.raises(TreeError, match=r"vllm/a\.py: No space left on device"):
        stage.overlay()
    assert list(stage.root.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told(stage: Stage) -> None:
    stage.root.write_text("a file")
    with pytest.raises(TreeError, match=f"found:    {stage.root}: File exists"):
        stage.overlay()
