"""`tprig replay` and `tprig export-test`, with a stand-in for the interpreter under test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from tests.fakes import oracles
from tests.tprig.test_replay import interpreter
from tprig.bundle import load, seal
from tprig.cli import main

CALL = oracles.captured().id
TENSORS = f"oracles/{CALL}/tensors.safetensors"
DIGESTS = {t.name: t.digest for t in oracles.captured().call.tensors if t.role == "output"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return oracles.write(tmp_path / "bundle")


def exact(folder: Path, digests: dict[str, str]) -> str:
    """An interpreter whose replays return what has these digests."""
    path = Path(interpreter(folder))
    path.write_text(path.read_text().replace("digests={}", f"digests={digests!r}"))
    return str(path)


def command(root: Path, python: str, *more: str) -> list[str]:
    return ["replay", str(root), "--vllm-python", python, "--repetitions", "2", *more]


def test_an_exact_replay_passes_and_leaves_the_bundle_alone(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = load(root).digest
    assert main(command(root, exact(tmp_path, DIGESTS))) == 0
    printed = capsys.readouterr()
    assert "pass: 1 of 1 captured calls exact in every repetition" in printed.out
    assert "replay on: repetition 2 took" in printed.err
    assert load(root).digest == digest


def test_another_result_fails_and_names_the_output(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = DIGESTS | {"sampled": "f" * 32}
    assert main(command(root, exact(tmp_path, changed), "--json")) == 1
    (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
    # The stored replay returned what production did, the new one does not.
    assert verdict["failures"] == {"oracle.production": 1}
    assert "expected sampled" in verdict["reason"]


def test_results_are_added_where_that_is_asked_for(root: Path, tmp_path: Path) -> None:
    assert main(command(root, exact(tmp_path, DIGESTS), "--add")) == 0
    bundle = load(root)
    assert (bundle.problems, len(bundle.replays)) == ((), 2)
    assert main(["check", str(root)]) == 0


def test_a_replay_that_ends_early_leaves_it_open(root: Path, tmp_path: Path) -> None:
    python = interpreter(tmp_path, "os._exit(3)")
    assert main(command(root, python)) == 2


def test_a_call_out_of_bounds_is_refused_by_the_field_s_name(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = load_file(root / TENSORS)
    tensors["cu_num_logits"] = tensors["cu_num_logits"] * 2
    (root / TENSORS).unlink()
    save_file(tensors, root / TENSORS)
    seal(root)
    for arguments in (
        command(root, str(tmp_path / "never started")),
        ["export-test", str(root), CALL, "--output", str(tmp_path)],
    ):
        assert main(arguments) == 4
        assert f"call {CALL} is refused: cu_num_logits: expected" in capsys.readouterr().err


def test_a_damaged_bundle_is_not_replayed(root: Path, tmp_path: Path) -> None:
    (root / TENSORS).write_bytes(b"x" * 100)
    assert main(command(root, str(tmp_path / "never started"))) == 3
    assert main(["export-test", str(root), CALL, "--output", str(tmp_path / "o")]) == 3
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("call", ["f" * 8, ""])
def test_a_call_must_be_told_from_the_others(
    root: Path, tmp_path: Path, call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["export-test", str(root), call, "--output", str(tmp_path / "o")])
    if call:
        assert code == 4
        assert f"found '{call}', which begins 0; the bundle holds {CALL}" in capsys.readouterr().err
    else:
        assert code == 0, "an empty beginning is that of the only one"


def test_an_exported_call_is_a_python_file_beside_its_tensors(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert main(["export-test", str(root), CALL[:10], "--output", str(folder)]) == 0
    test = folder / f"test_oracle_{CALL[:12]}.py"
    assert capsys.readouterr().out == f"{test}\n"
    text = test.read_text()
    compile(text, str(test), "exec")
    assert "import tprig" not in text
    assert "from tprig" not in text
    data = folder / f"oracle_{CALL[:12]}.safetensors"
    assert data.read_bytes() == (root / TENSORS).read_bytes()
