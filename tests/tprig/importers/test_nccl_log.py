"""Logs of NCCL's collectives become a bundle that the same checker judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from tprig.cli import main

INIT = (
    "node:{pid}:9 [{rank}] NCCL INFO ncclCommInitRank comm 0x5{pid} rank {rank} nranks 2 cudaDev "
    "{rank} nvmlDev {rank} busId 3000 commId 0x{id} - Init COMPLETE\n"
)
CALL = (
    "node:{pid}:9 [{rank}] NCCL INFO {kind}: opCount {number:x} sendbuff 0x7f recvbuff 0x7e acc "
    "(nil) count {count} datatype {dtype} op {op} root {root} comm 0x5{pid} [nranks=2] stream "
    "0x6{pid} task 0 globalrank {rank}\n"
)
Call = tuple[str, int, int, int, int]
"""Kind, count, datatype, reduction, root."""
USUAL: list[Call] = [
    ("AllReduce", 4096, 9, 0, 0),
    ("AllReduce", 4096, 9, 0, 0),
    ("AllGather", 1024, 7, 0, 0),
    ("Broadcast", 16, 4, 0, 0),
]


def log(path: Path, rank: int, calls: list[Call], *, init: bool = True) -> Path:
    pid = 100 + rank
    lines = ["node: something else entirely\n"]
    if init:
        lines.append(INIT.format(pid=pid, rank=rank, id="beef"))
    for number, (kind, count, dtype, op, root) in enumerate(calls):
        lines.append(
            CALL.format(
                pid=pid, rank=rank, kind=kind, number=number, count=count, dtype=dtype, op=op,
                root=root,
            )
        )  # fmt: skip
    path.write_text("".join(lines))
    return path


def judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *ranks: list[Call], init: bool = True
) -> tuple[int, str]:
    """Exit code and words of `tprig check` on what was imported."""
    files = [log(tmp_path / f"log.{r}", r, calls, init=init) for r, calls in enumerate(ranks)]
    root = tmp_path / "bundle"
    command = ["import", "--format", "nccl-log", "--into", str(root), *map(str, files)]
    assert main(command) == 0
    assert f"tprig check {root}" in capsys.readouterr().out
    code = main(["check", str(root)])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("init", [True, False])
def test_logs_that_agree_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, init: bool
) -> None:
    """Communicators are addresses of the process; without their ids, their order tells them."""
    code, told = judged(tmp_path, capsys, USUAL, USUAL, init=init)
    assert code == 0, told


@pytest.mark.parametrize(
    ("change", "anomaly"),
    [
        (("AllReduce", 4096, 9, 0, 0), "collective.type"),
        (("AllGather", 1025, 7, 0, 0), "collective.size"),
        (("AllGather", 1024, 9, 0, 0), "collective.dtype"),
    ],
)
def test_what_differs_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Call, anomaly: str
) -> None:
    code, told = judged(tmp_path, capsys, USUAL, [*USUAL[:2], change, USUAL[3]])
    assert code == 1
    assert anomaly in told


def test_a_reduction_and_a_root_are_compared_where_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = judged(tmp_path, capsys, USUAL, [*USUAL[:3], ("Broadcast", 16, 4, 0, 1)])
    assert code == 1
    assert "collective.root" in told


def test_a_call_that_one_rank_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = judged(tmp_path, capsys, USUAL * 3, [*USUAL, *USUAL[1:], *USUAL])
    assert code == 1
    assert "collective.missing" in told


def test_a_rank_whose_log_is_not_there_leaves_it_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = judged(tmp_path, capsys, USUAL)
    assert code == 2
    assert "has 2 ranks, 1 of which are among the files" in told.replace("\n", " ")


def test_a_file_without_collectives_is_said_to_be_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "log"
    empty.write_text("nothing of the kind\n")
    command = ["import", "--format", "nccl-log", "--into", str(tmp_path / "b"), str(empty)]
    assert main(command) == 4
    assert "NCCL_DEBUG_SUBSYS=INIT,COLL" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_a_format_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--format", "xml", "--into", str(tmp_path / "b"), __file__]) == 4
    assert "expected nccl-log or flight-recorder, found 'xml'" in capsys.readouterr().err
