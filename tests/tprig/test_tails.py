from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tprig.tails import RAISED_CHARS, TAIL_BYTES, ending, raised, tail

LOG = """\
INFO 12-01 09:40:42 [core.py:1] all is well
Traceback (most recent call last):
  File "a.py", line 1, in main
    raise ValueError("first: a colon")
ValueError: first: a colon
(Worker_TP0 pid=3845) ERROR 12-01 09:40:42 [executor.py:953] Traceback (most recent call last):
(Worker_TP0 pid=3845) ERROR 12-01 09:40:42 [executor.py:953]     raise Error("no Error: of ours")
(Worker_TP0 pid=3845) ERROR 12-01 09:40:42 [executor.py:953] safetensors.SafetensorError: bad header
(Worker_TP1 pid=3846) ERROR 12-01 09:40:43 [executor.py:953] safetensors.SafetensorError: bad header
    Error: indented, so it is none
Exception: the last
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_text(LOG)
    return path


def test_the_tail_is_the_last_lines(log: Path) -> None:
    assert tail(log, 2) == "    Error: indented, so it is none\nException: the last"
    assert tail(log) == LOG.rstrip("\n")


def test_the_tail_of_a_long_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xffx" * TAIL_BYTES)
    assert 0 < len(tail(path)) <= TAIL_BYTES


def test_what_was_raised_is_told_once_and_in_order(log: Path) -> None:
    assert raised(log) == [
        "ValueError: first: a colon",
        "safetensors.SafetensorError: bad header",
        "Exception: the last",
    ]


def test_what_was_raised_is_told_in_short(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"ValueError: {'x' * 10_000}\n")
    assert [len(line) for line in raised(path)] == [RAISED_CHARS]


def test_a_log_that_is_missing_or_empty(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    for path in (tmp_path / "none", empty, tmp_path):
        assert (tail(path), raised(path)) == ("", [])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (137, "ended with exit code 137"),
        (-signal.SIGKILL, "ended by SIGKILL"),
        (-(signal.SIGRTMIN + 5), "ended by signal 39"),
        (None, "ended"),
    ],
)
def test_how_a_process_ended(code: int | None, words: str) -> None:
    assert ending(code) == words
