import shutil
from pathlib import Path

import pytest

from tests.fakes import bundles
from tprig.cli import main


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return bundles.pair(tmp_path / "bundle")


def test_the_page_of_a_sound_bundle_is_0(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(root)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("## tprig: pass\n")
    assert "pip install . && tprig check bundle\n" in printed


def test_a_stored_pass_is_not_trusted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line, _ = next(bundles.emissions(root, "on"))
    bundles.edit(root, "runs/on/outputs.jsonl", line, lambda r: r["rows"][0].update(rank=99))
    assert main(["report", str(root)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("## tprig: **fail**\n")
    assert "`output.ranks`" in printed
    assert f"runs/on/outputs.jsonl:{line}" in printed


def test_a_damaged_bundle_is_3_and_nothing_of_it_is_shown_as_tested(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "environment.json").write_bytes(b"{}")
    assert main(["report", str(root)]) == 3
    printed = capsys.readouterr().out
    assert printed.startswith("## tprig: **the evidence is damaged**\n")
    assert "damaged: `environment.json`" in printed
    assert "0.32.0" not in printed


def test_an_interrupted_bundle_is_2(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "manifest.json").unlink()
    assert main(["report", str(root)]) == 2
    printed = capsys.readouterr().out
    assert printed.startswith("## tprig: **unknown**, of a run that was interrupted\n")
    assert "missing: `manifest.json`" in printed


def test_a_folder_of_any_name_can_be_pasted(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = shutil.move(root, tmp_path / "a b`$(x)")
    assert main(["report", str(moved)]) == 0
    assert "tprig check 'a b`$(x)'\n" in capsys.readouterr().out
