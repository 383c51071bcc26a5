from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_scheduler import watch
from gpu_scheduler.watch import Watch
from tests.gpu_scheduler.children import PATIENCE_S

LONG_S = PATIENCE_S


class Sleeps(Watch):
    """Never gives up by itself: a test that misses an event fails by pytest's own patience."""

    def wait(self, most_s: float, *, far: bool = False) -> float:
        self._next_s = most_s
        return super().wait(most_s, far=far)


def test_close_after_writing_ends_the_sleep(tmp_path: Path) -> None:
    with Sleeps() as waiting:
        assert waiting.turn_to([str(tmp_path)])
        (tmp_path / "a").write_text("x")
        assert waiting.wait(LONG_S) == 0
        assert waiting._next_s == watch._FIRST_S


def test_end_of_a_process_ends_the_sleep(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with Sleeps() as waiting:
        waiting.turn_to([str(tmp_path / "a")])
        pid = os.fork()
        if pid == 0:
            os.open(tmp_path / "a", os.O_WRONLY)
            os._exit(0)
        assert waiting.wait(LONG_S) == 0
        assert waiting._next_s == watch._FIRST_S
        os.waitpid(pid, 0)


def test_reading_and_other_files_end_no_sleep(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    with Watch() as waiting:
        waiting.turn_to([str(tmp_path / "a")])
        (tmp_path / "a").read_text()
        (tmp_path / "b").write_text("x")
        waiting.wait(0)
        assert waiting._next_s > watch._FIRST_S


def test_turning_elsewhere_is_told_and_begins_anew(tmp_path: Path) -> None:
    with Watch() as waiting:
        assert waiting.turn_to([str(tmp_path)])
        assert not waiting.turn_to([str(tmp_path)])
        (tmp_path / "a").touch()
        assert waiting.turn_to([str(tmp_path / "a")])
        waiting.wait(0)
        assert waiting._next_s > watch._FIRST_S, "what the caller must look at anew was kept"


def test_watch_of_a_process_is_used_again_and_tells_nothing_of_the_last_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To close one takes the kernel milliseconds."""
    with Watch() as first:
        first.turn_to([str(tmp_path)])
        (tmp_path / "a").write_text("x")
    monkeypatch.setattr(watch, "_inotify", lambda: pytest.fail("another one was opened"))
    with Watch() as second:
        second.wait(0)
        assert second._next_s > watch._FIRST_S
        (tmp_path / "a").write_text("y")
        second.wait(0)
        assert second._next_s > watch._FIRST_S


def test_forked_child_shares_no_watch_with_its_parent(tmp_path: Path) -> None:
    """Each would take the other's events away."""
    with Watch():
        pass
    assert watch._spares._idle
    pid = os.fork()
    if pid == 0:
        os._exit(len(watch._spares._idle))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with Sleeps() as waiting:
        waiting.turn_to([str(tmp_path)])
        (tmp_path / "a").write_text("x")
        assert waiting.wait(LONG_S) == 0


def test_sleeps_grow_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Watch() as waiting:
        waiting.turn_to([str(tmp_path)])
        lengths: list[float] = []
        monkeypatch.setattr(waiting, "_poll", Recorder(lengths))
        for _ in range(12):
            waiting.wait(LONG_S)
        assert waiting.wait(0.1) == 0.1
    assert lengths[:3] == [2, 4, 8]
    assert lengths[-2:] == [watch._MOST_S * 1000, 100]


class Recorder:
    def __init__(self, lengths_ms: list[float]) -> None:
        self._lengths_ms = lengths_ms

    def poll(self, length_ms: float) -> list[object]:
        self._lengths_ms.append(length_ms)
        return []


@pytest.mark.parametrize("path", ["", "missing"])
def test_without_a_watch_the_sleeps_stay_short(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives few watches per user; a file may be gone."""
    if not path:
        monkeypatch.setattr(watch._spares, "_idle", [])
        monkeypatch.setattr(watch, "_inotify", lambda: None)
    with Watch() as waiting:
        waiting.turn_to([str(tmp_path / path)])
        lengths: list[float] = []
        monkeypatch.setattr(waiting, "_poll", Recorder(lengths))
        for _ in range(9):
            waiting.wait(LONG_S)
        assert lengths[-1] == watch._MOST_UNTOLD_S * 1000
        for _ in range(9):
            waiting.wait(LONG_S, far=True)
        assert lengths[-1] == watch._MOST_UNTOLD_FAR_S * 1000
