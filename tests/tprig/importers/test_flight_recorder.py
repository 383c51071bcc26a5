"""Dumps of torch's flight recorder are read without ever calling what they name."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tprig.cli import main


def entry(number: int, name: str = "nccl:all_reduce", **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    given = {
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "tp"),
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "op_id": number + 1,
        "profiling_name": name,
        "time_created_ns": 1000 + number,
        "input_sizes": [[4, 8]],
        "output_sizes": [[4, 8]],
        "input_dtypes": ["BFloat16"],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 2000 + number,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [{"name": "forward", "filename": "/x/model.py", "line": 3}],
    }
    return given | fields


def dump(path: Path, entries: list[dict[str, Any]], ranks: str = "[0, 1]") -> Path:
    config = {"0": {"name": "0", "desc": "tp", "ranks": ranks}}
    path.write_bytes(pickle.dumps({"version": "2.10", "pg_config": config, "entries": entries}))
    return path


def judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *ranks: list[dict[str, Any]]
) -> tuple[int, str]:
    files = [dump(tmp_path / f"trace_{rank}", entries) for rank, entries in enumerate(ranks)]
    root = tmp_path / "bundle"
    command = ["import", "--format", "flight-recorder", "--into", str(root)]
    # The ranks are in the names of the files, whatever their order.
    assert main([*command, *map(str, reversed(files))]) == 0
    capsys.readouterr()
    return main(["check", str(root)]), capsys.readouterr().out


USUAL = [entry(0), entry(1, "nccl:_all_gather_base"), entry(2)]


def test_dumps_that_agree_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = judged(tmp_path, capsys, USUAL, USUAL)
    assert code == 0, told


def test_dumps_of_gloo_are_read_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gloo = [entry(0, "gloo:all_reduce"), entry(1, "gloo:broadcast")]
    assert judged(tmp_path, capsys, gloo, gloo)[0] == 0


def test_a_difference_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = [*USUAL[:2], entry(2, input_sizes=[[5, 8]])]
    code, told = judged(tmp_path, capsys, USUAL, other)
    assert code == 1
    assert "collective.size" in told


def test_a_rank_that_never_came_is_found_by_what_the_other_waits_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = [*USUAL, entry(3, state="started", time_discovered_completed_ns=None)]
    code, told = judged(tmp_path, capsys, waiting, USUAL)
    assert code == 1
    assert "rank.stall" in told


def test_a_ring_that_wrapped_leaves_it_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = [entry(record["record_id"] + 50) for record in USUAL]
    code, told = judged(tmp_path, capsys, later, later)
    assert code == 2
    assert "record.truncated" in told


def test_a_send_meets_a_receive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = judged(
        tmp_path, capsys, [entry(0, "nccl:send 0->1")], [entry(0, "nccl:recv 1<-0")]
    )
    assert code == 0, told


# --- hostile files ------------------------------------------------------------------------------


class Callable:
    """Would have a function called as it is read."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.witness,)


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    root = path.parent / "bundle"
    command = ["import", "--format", "flight-recorder", "--into", str(root), str(path)]
    assert main(command) == 4
    assert not root.exists()
    return capsys.readouterr().err


def test_nothing_that_a_dump_names_is_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    witness, path = tmp_path / "called", tmp_path / "trace_0"
    path.write_bytes(pickle.dumps({"entries": [], "pg_config": Callable(witness)}))
    assert "expected plain values and no callable" in " ".join(refused(path, capsys).split())
    assert not witness.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no pickle",
        pickle.dumps([1, 2]),
        pickle.dumps({"entries": [{"record_id": "x"}], "pg_config": {}}),
        pickle.dumps({"entries": [entry(0)], "pg_config": {}})[:-20],
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04Pid\n.",
    ],
)
def test_what_is_no_dump_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    path = tmp_path / "trace_0"
    path.write_bytes(data)
    assert "trace_0" in refused(path, capsys)


def test_ranks_are_no_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dump(tmp_path / "trace_0", [entry(0)], ranks="__import__('os').getpid()")
    assert "expected the ranks of a group" in " ".join(refused(path, capsys).split())
