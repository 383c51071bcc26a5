from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_scheduler import durations
from gpu_scheduler.durations import DurationsError, load, record
from tests.gpu_scheduler.children import ROOT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / durations.FILE


def test_nothing_is_known_before_the_first_run(path: Path) -> None:
    assert load(path) == {}


def test_what_is_recorded_is_read_back(path: Path) -> None:
    record(path, {"b": 2.0, "a": 0.12345})
    assert load(path) == {"a": 0.123, "b": 2.0}
    assert list(json.loads(path.read_text())["seconds"]) == ["a", "b"]


def test_a_run_replaces_what_it_ran_and_keeps_the_rest(path: Path) -> None:
    record(path, {"old": 1.0, "both": 1.0})
    record(path, {"new": 2.0, "both": 3.0})
    assert load(path) == {"old": 1.0, "both": 3.0, "new": 2.0}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"version": 2, "seconds": {}}',
        '{"version": 1, "seconds": {"a": -1}}',
        '{"version": 1, "seconds": {"a": "1"}}',
        '{"version": 1, "seconds": {"a": true}}',
        '{"version": 1}',
        "\xff",
    ],
)
def test_something_else_is_said_and_left_as_it_is(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DurationsError, match=r"durations\.json: expected .*; delete it"):
        load(path)
    with pytest.raises(DurationsError, match=r"durations\.json: expected .*; delete it"):
        record(path, {"a": 1.0})
    assert path.read_bytes() == text.encode("latin-1")


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / ".tprig").write_text("a file")
    with pytest.raises(DurationsError, match="cannot be written"):
        record(tmp_path / durations.FILE, {"a": 1.0})


def test_a_write_that_fails_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(path, {"a": 1.0})

    def fail(_self: Path, _target: Path) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(DurationsError, match="No space left"):
        record(path, {"a": 2.0})
    assert load(path) == {"a": 1.0}
    assert {each.name for each in path.parent.iterdir()} == {
        "durations.json",
        "durations.json.lock",
    }


def test_runs_that_end_at_the_same_time_lose_nothing(path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from gpu_scheduler.durations import record\n"
        "for n in range(20): record(Path(sys.argv[1]), {f'{sys.argv[2]}-{n}': float(n)})"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", script, str(path), name], cwd=ROOT)
        for name in ("one", "two", "three")
    ]
    assert [each.wait() for each in runs] == [0, 0, 0]
    assert len(load(path)) == 60
