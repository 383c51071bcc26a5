import json
import shutil
from pathlib import Path

import pytest

from tests.fakes import bundles, histories
from tprig.bundle import seal
from tprig.cli import main


@pytest.fixture(scope="module")
def a(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundles.pair(tmp_path_factory.mktemp("a") / "a")


@pytest.fixture
def b(a: Path, tmp_path: Path) -> Path:
    return shutil.copytree(a, tmp_path / "b")


def compare(a: Path, b: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["compare", str(a), str(b)])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, printed.out


def test_equal_bundles_are_0(a: Path, b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = compare(a, b, capsys)
    assert code == 0
    assert "equal: " in printed


def test_the_first_difference_is_shown_with_both_places(
    a: Path, b: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, record = list(bundles.emissions(b, "on"))[3]
    bundles.edit(b, "runs/on/outputs.jsonl", line, lambda r: r["rows"][0].update(rank=99))
    bundles.edit(
        b, "engines/engine-on/effective.json", 0, lambda e: e.update(vllm_version="0.33.0")
    )
    code, printed = compare(a, b, capsys)
    assert code == 1
    request, row = record["request"], record["first"]
    assert f"first difference: run on, request {request}, row {row}: rank" in printed
    assert f"B: 99  at runs/on/outputs.jsonl:{line} (run on, request {request}, row {row})" in (
        printed
    )
    assert "vLLM version" in printed
    assert "0.33.0" in printed

    assert main(["compare", str(a), str(b), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 1
    on = next(run for run in document["runs"] if run["run"] == "on")
    assert on["divergences"][0]["where_b"]["line"] == line
    assert document["what_else_differs"][0]["what"] == "vLLM version"


def test_different_workloads_are_2(
    a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = bundles.pair(tmp_path / "other", seed=2)
    code, printed = compare(a, other, capsys)
    assert code == 2
    assert "asked different things" in printed
    assert "nothing could be compared" in printed


def test_a_run_that_only_one_holds_is_said(
    a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off, _ = histories.pair(1, requests=2)
    other = bundles.write(tmp_path / "other", [off], histories.plan([]))
    code, printed = compare(a, other, capsys)
    assert code == 2
    assert "only in bundle A: on" in printed


def test_a_truncated_bundle_is_2(a: Path, b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = b / "runs/on/outputs.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    seal(b)
    code, printed = compare(a, b, capsys)
    assert code == 2
    assert "cut short" in printed


def test_an_interrupted_bundle_is_2(a: Path, b: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (b / "manifest.json").unlink()
    code, printed = compare(a, b, capsys)
    assert code == 2
    assert "bundle B: missing: manifest.json" in printed


@pytest.mark.parametrize("swapped", [False, True])
def test_a_damaged_bundle_is_3(
    a: Path,
    b: Path,
    swapped: bool,  # noqa: FBT001
    capsys: pytest.CaptureFixture[str],
) -> None:
    (b / "plan.json").write_bytes(b"{}")
    code, printed = compare(*((b, a) if swapped else (a, b)), capsys)
    assert code == 3
    assert f"bundle {'A' if swapped else 'B'}: damaged: plan.json " in printed


def test_no_bundle_is_4(a: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(a), str(tmp_path / "none")]) == 4
    assert "cannot be opened as a bundle" in capsys.readouterr().err
