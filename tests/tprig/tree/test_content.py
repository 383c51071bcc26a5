"""What becomes of a build's own files: sources, bytecode and editable installs."""

import subprocess
from pathlib import Path

import pytest

from tests.tprig.tree.conftest import GENERATED, Stage, files, write
from tprig.tree import TreeError, overlay

# --- patched builds --------------------------------------------------------------------------


def test_what_a_packager_patched_stays_and_is_told(stage: Stage) -> None:
    write(stage.site, {"vllm/patched.py": "MADE_FOR = 'these binaries'\n"})
    stage.write("vllm/a.py", "WHAT = 'the change'\n")
    laid = stage.overlay()
    code = "import vllm, vllm.patched as p; print(vllm.WHAT, p.MADE_FOR, sep='|')"
    assert stage.run(laid, code) == "the change|these binaries"
    assert (laid.changed, laid.patched) == (("vllm/a.py",), ("vllm/patched.py",))


@pytest.mark.parametrize("text", ["MADE_FOR = 'someone'\n", None])
def test_a_patched_file_may_not_be_changed(stage: Stage, text: str | None) -> None:
    write(stage.site, {"vllm/patched.py": "MADE_FOR = 'these binaries'\n"})
    if text is None:
        (stage.work / "vllm/patched.py").unlink()
    else:
        stage.write("vllm/patched.py", text)
    with pytest.raises(TreeError, match=r"its packager changed, too: vllm/patched.py\n"):
        stage.overlay()


def test_a_patch_may_be_the_change_itself(stage: Stage) -> None:
    for folder in (stage.site, stage.work):
        write(folder, {"vllm/patched.py": "MADE_FOR = 'both'\n"})
        write(folder, {"vllm/new.py": "NEW = 1\n"})
    laid = stage.overlay()
    assert (laid.changed, laid.patched) == (("vllm/new.py", "vllm/patched.py"), ())
    assert files(laid.folder)["vllm/patched.py"] == "MADE_FOR = 'both'\n"


def test_a_new_file_may_not_hide_one_that_the_build_made(stage: Stage) -> None:
    write(stage.site, {"vllm/new.py": "NEW = 'of the build'\n"})
    stage.write("vllm/new.py", "NEW = 'of the tree'\n")
    with pytest.raises(TreeError, match="its packager changed, too: vllm/new"):
        stage.overlay()


def test_a_build_of_another_revision_is_refused(stage: Stage) -> None:
    for number in range(8):
        stage.write(f"vllm/pkg/m{number}.py", f"NUMBER = {number + 1}\n")
    stage.commit()
    with pytest.raises(TreeError, match=r"built from HEAD .*\nfound:    8 of its 38 sources"):
        stage.overlay(base="HEAD")
    assert stage.overlay().patched == ()


# --- bytecode --------------------------------------------------------------------------------


def bytecode(folder: Path) -> set[str]:
    return {path.name.partition(".")[0] for path in folder.rglob("*.pyc")}


def test_bytecode_is_used_where_the_source_is_the_installed_one(stage: Stage) -> None:
    stage.write("vllm/a.py", "WHAT = 'that!'\n")
    (stage.work / "vllm/gone.py").unlink()
    write(stage.site, {"vllm/stray/__pycache__/m.cpython-311.pyc": "without a source"})
    laid = stage.overlay()
    names = {Path(name).stem for name in files(laid.folder) if name.endswith(".py")}
    assert bytecode(laid.folder) == names - {"a", "gone"}
    done = subprocess.run(
        [stage.python(), "-v", "-c", "import vllm.pkg.m3"],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(laid.folder)},
    )
    assert f"pyc matches {laid.folder}/vllm/pkg/m3.py" in done.stderr
    assert f"pyc matches {laid.folder}/vllm/a.py" not in done.stderr


def test_a_change_of_the_same_size_and_time_is_seen(stage: Stage) -> None:
    text = (stage.site / "vllm/a.py").read_text()
    stage.write("vllm/a.py", text.replace("base", "soap"))
    assert stage.run(stage.overlay(), "import vllm; print(vllm.WHAT)") == "soap"


def test_bytecode_written_later_stays_out_of_the_installed_package(stage: Stage) -> None:
    before = {path: path.read_bytes() for path in stage.site.rglob("*.pyc")}
    laid = stage.overlay()
    for path in laid.folder.rglob("m3.*.pyc"):
        path.resolve().write_bytes(b"not bytecode at all")
    broken = {path: path.read_bytes() for path in stage.site.rglob("*.pyc")}
    subprocess.run(
        [stage.python(), "-c", "import vllm.pkg.m3, vllm.a"],
        check=True,
        env={"PYTHONPATH": str(laid.folder)},
    )
    assert {path: path.read_bytes() for path in stage.site.rglob("*.pyc")} == broken
    assert len(broken) == len(before)


def test_bytecode_does_not_name_an_overlay(stage: Stage) -> None:
    first = stage.overlay()
    for path in stage.site.rglob("*.pyc"):
        path.unlink()
    assert stage.overlay().folder == first.folder
    assert stage.run(first, "import vllm; print(vllm.WHAT)") == "base"


# --- editable installs -----------------------------------------------------------------------


@pytest.fixture
def editable(stage: Stage) -> str:
    """An interpreter that has the work tree itself installed."""
    write(stage.work, GENERATED)
    return stage.python(stage.work)


def test_an_editable_install_lends_only_what_was_built(stage: Stage, editable: str) -> None:
    stage.write("vllm/a.py", "WHAT = 'committed'\n")
    commit = stage.commit()
    committed = files(stage.work)
    stage.write("vllm/a.py", "WHAT = 'edited'\n")
    stage.write("vllm/pkg/m4.py", "NUMBER = 'edited'\n")
    stage.write("vllm/untracked.py", "\n")
    laid = overlay(f"{stage.work}@{commit}", editable, stage.root)
    assert files(laid.folder) == committed
    assert (laid.changed, laid.patched) == (("vllm/a.py",), ())
    laid = overlay(str(stage.work), editable, stage.root)
    assert files(laid.folder) == files(stage.work)


def test_later_edits_of_an_editable_install_change_nothing(stage: Stage, editable: str) -> None:
    laid = overlay(str(stage.work), editable, stage.root)
    before = files(laid.folder)
    for name in files(stage.work):
        if name not in GENERATED:
            stage.write(name, "raise SystemExit(1)\n")
    assert files(laid.folder) == before
    assert (laid.folder / "vllm/_C.abi3.so").readlink() == stage.work / "vllm/_C.abi3.so"
