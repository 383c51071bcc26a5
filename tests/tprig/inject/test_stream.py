"""A rank's stream: read back as the schema's, whole lines only, whatever the disk does."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tprig_inject import stream
from tprig_inject.stream import RankStream

from tprig import evidence
from tprig.bundle import Writer, load

RANK = "runs/r1/ranks/rank0.jsonl"
RECORDS: list[dict[str, Any]] = [
    {
        "type": "verification",
        "step": 0,
        "requests": [
            {
                "request": "a",
                "draft_token_ids": [1, -1],
                "sampled_token_ids": [1, 2],
                "rejected": 1,
            }
        ],
    },
    {"type": "fault", "name": "f", "event": "struck", "step": None, "detail": "é\n"},
]


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond this: a write fails as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_bytes()
    assert not text or text.endswith(b"\n")
    return [msgspec.json.decode(line) for line in text.splitlines()]


def test_version_is_that_of_the_schema() -> None:
    assert stream.SCHEMA_VERSION == evidence.SCHEMA_VERSION


def test_a_stream_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    Writer(tmp_path / "bundle")
    written = RankStream(tmp_path / "bundle" / RANK, "r1")
    for record in RECORDS:
        written.write(record)
    written.close()
    bundle = load(tmp_path / "bundle")
    found = bundle.runs["r1"].ranks[0]
    assert found.records == tuple(msgspec.convert(r, evidence.RankRecord) for r in RECORDS)
    assert (found.complete, found.dropped) == (True, 0)
    assert not bundle.damaged
    first, *_, last = lines(tmp_path / "bundle" / RANK)
    assert msgspec.convert(first, evidence.Header) == evidence.Header(
        version=evidence.SCHEMA_VERSION, stream="rank", subject="r1"
    )
    assert msgspec.convert(last, evidence.End) == evidence.End(records=2, dropped=0)


def test_each_record_is_in_the_file_when_it_has_been_written(tmp_path: Path) -> None:
    """A process that is killed now has lost nothing."""
    path = tmp_path / "rank0.jsonl"
    written = RankStream(path, "r1")
    for count, record in enumerate(RECORDS, 2):
        written.write(record)
        assert len(lines(path)) == count
    written.close()


def test_an_older_stream_is_not_overwritten(tmp_path: Path) -> None:
    RankStream(tmp_path / "rank0.jsonl", "r1").close()
    with pytest.raises(FileExistsError):
        RankStream(tmp_path / "rank0.jsonl", "r1")


def test_what_finds_no_room_is_dropped_whole_and_counted(tmp_path: Path) -> None:
    Writer(tmp_path / "bundle")
    path = tmp_path / "bundle" / RANK
    written = RankStream(path, "r1")
    written.write(RECORDS[0])
    # Room for a part of the next record.
    with file_size_limit(path.stat().st_size + 20):
        written.write(RECORDS[0])
        written.write(RECORDS[1])
        assert len(lines(path)) == 2
    written.write(RECORDS[1])
    written.close()
    assert lines(path)[-1] == {"type": "end", "records": 2, "dropped": 2}
    bundle = load(tmp_path / "bundle")
    found = bundle.runs["r1"].ranks[0]
    assert found.records == tuple(msgspec.convert(r, evidence.RankRecord) for r in RECORDS)
    assert (found.complete, found.dropped) == (True, 2)
    assert not bundle.damaged


def test_without_room_for_the_end_the_stream_counts_as_cut(tmp_path: Path) -> None:
    Writer(tmp_path / "bundle")
    path = tmp_path / "bundle" / RANK
    written = RankStream(path, "r1")
    written.write(RECORDS[0])
    with file_size_limit(path.stat().st_size + 5):
        written.close()
    bundle = load(tmp_path / "bundle")
    assert len(bundle.runs["r1"].ranks[0].records) == 1
    assert not bundle.runs["r1"].ranks[0].complete
    assert not bundle.damaged


def test_without_room_for_the_header_nothing_is_written_later(tmp_path: Path) -> None:
    """Records without a header would be taken for damage; a stream that is empty is missing."""
    Writer(tmp_path / "bundle")
    path = tmp_path / "bundle" / RANK
    with file_size_limit(10):
        written = RankStream(path, "r1")
    written.write(RECORDS[0])
    written.close()
    assert path.read_bytes() == b""
    bundle = load(tmp_path / "bundle")
    assert not bundle.damaged
    assert RANK in {problem.file for problem in bundle.problems if problem.kind == "missing"}


def test_the_device_that_is_always_full_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open
    monkeypatch.setattr(os, "open", lambda *_: real("/dev/full", os.O_WRONLY))
    written = RankStream(tmp_path / "rank0.jsonl", "r1")
    written.write(RECORDS[0])
    written.close()


def test_a_record_that_json_lacks_is_an_error_of_ours(tmp_path: Path) -> None:
    """A recorder that passes a NaN on is wrong: dropping it would hide that."""
    written = RankStream(tmp_path / "rank0.jsonl", "r1")
    with pytest.raises(ValueError, match="JSON"):
        written.write({"type": "verification", "value": float("nan")})
    written.close()
    assert [line["type"] for line in lines(tmp_path / "rank0.jsonl")] == ["header", "end"]
