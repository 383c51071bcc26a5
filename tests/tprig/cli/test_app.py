import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import bundles
from tprig.cli import app, main
from tprig.cli import check as check_command

ROOT = Path(__file__).parents[3]

BLOCKER = """
import sys
foreign = {"torch", "vllm", "triton", "transformers", "pytest", "pynvml"}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in foreign:
            raise RuntimeError(f"{name} was imported")
sys.meta_path.insert(0, Blocker())
from tprig.cli import main
sys.exit(main(sys.argv[1:]))
"""


def tprig(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(
        [sys.executable, "-m", "tprig", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("check",),
        ("check", "a", "b"),
        ("check", "--nonsense", "a"),
        ("compare", "a"),
        ("report",),
        ("doctor", "--vllm-python"),
        ("gpus", "nonsense"),
        ("gpus", "release"),
    ],
)
def test_wrong_usage_is_4_and_never_clicks_own_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 4
    printed = capsys.readouterr()
    assert "Usage: tprig" in printed.err + printed.out or "Error: " in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    "arguments", [("--help",), ("check", "-h"), ("gpus", "-h"), ("--version",)]
)
def test_help_and_version_are_0(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 0
    assert "tprig" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "report"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("missing", "No such file or directory"),
        ("file", "Not a directory"),
        ("folder", "is no bundle: expected manifest.json or plan.json"),
        ("a\nb\x1b[31m", r"\x1b[31m cannot be opened"),
        ("x" * 5000, "File name too long"),
    ],
)
def test_what_is_no_bundle_is_4_in_one_line(
    command: str, name: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert main([command, str(tmp_path / name)]) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert expected in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_is_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = bundles.pair(tmp_path / "bundle")
    root.chmod(0)
    try:
        assert main(["check", str(root)]) == 4
    finally:
        root.chmod(0o755)
    assert "Permission denied" in capsys.readouterr().err


def test_an_unexpected_error_is_one_line_and_where_to_report_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(check_command, "run", fail)
    monkeypatch.delenv("TPRIG_TRACEBACK", raising=False)
    assert main(["check", str(tmp_path)]) == 4
    told = capsys.readouterr().err
    assert told.startswith("tprig: unexpected ZeroDivisionError: by zero\n")
    assert "report it" in told
    assert "Traceback" not in told

    monkeypatch.setenv("TPRIG_TRACEBACK", "1")
    assert main(["check", str(tmp_path)]) == 4
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(check_command, "run", interrupt)
    assert main(["check", str(tmp_path)]) == app.INTERRUPTED


def test_checking_imports_nothing_of_an_engine(tmp_path: Path) -> None:
    root = bundles.pair(tmp_path / "bundle")
    for arguments in (
        ["check", str(root)],
        ["report", str(root)],
        ["compare", str(root), str(root)],
    ):
        done = subprocess.run(
            [sys.executable, "-c", BLOCKER, *arguments],
            check=False,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert done.stderr == ""
        assert done.returncode == 0


def test_help_imports_neither_numpy_nor_rich() -> None:
    code = (
        "import sys; from tprig.cli import main; main(['--help'])\n"
        "print(sorted({'numpy', 'scipy', 'rich', 'psutil', 'pynvml'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_module_runs_and_survives_a_terminal_that_knows_only_ascii(tmp_path: Path) -> None:
    root = bundles.pair(tmp_path / "bündel")
    done = tprig("check", str(root), PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.stderr == ""
    assert done.returncode == 0
    assert r"b\xfcndel" in done.stdout


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_whoever_stops_reading_changes_no_verdict(tmp_path: Path, options: tuple[str, ...]) -> None:
    root = bundles.pair(tmp_path / "bundle")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "tprig", "check", str(root), *options],
            check=False,
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
    assert done.stderr == ""
    assert done.returncode == 0
