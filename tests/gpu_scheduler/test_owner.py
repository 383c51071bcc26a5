from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler import host
from gpu_scheduler.owner import MAX_RECORD_BYTES, Owner, encode, is_alive, parse

COUNTS = st.integers(min_value=0, max_value=2**63 - 1)
OWNERS = st.builds(
    Owner,
    user=st.text(max_size=512),
    host=st.text(max_size=512),
    boot_id=st.text(max_size=512),
    pid_namespace=st.none() | COUNTS,
    pid=st.integers(min_value=1, max_value=2**31 - 1),
    start_token=st.none() | COUNTS,
    test=st.text(max_size=2000),
    command=st.text(max_size=2000),
    since_unix_s=st.floats(allow_nan=False, allow_infinity=False),
    lease_id=st.none() | st.text(max_size=512),
)


@given(OWNERS)
def test_record_comes_back(record: Owner) -> None:
    line = encode(record)
    assert len(line) <= MAX_RECORD_BYTES
    assert line.count(b"\n") == 1
    read = parse(line)
    assert read is not None
    assert replace(read, test="", command="") == replace(record, test="", command="")
    assert record.test.startswith(read.test)
    assert len(read.test) == min(len(record.test), 512)


def test_record_of_undecodable_arguments_is_still_one() -> None:
    record = replace(Owner.current("t"), command=os.fsdecode(b"run \xff"))
    read = parse(encode(record))
    assert read is not None
    assert read.command == "run ?"


@given(st.binary())
def test_garbage_is_none(data: bytes) -> None:
    assert parse(data) is None


@given(st.data())
def test_half_a_record_is_none(data: st.DataObject) -> None:
    line = encode(data.draw(OWNERS)).rstrip(b"\n")
    assert parse(line[: data.draw(st.integers(0, len(line) - 1))]) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pid", 0),
        ("pid", -1),
        ("pid", True),
        ("pid", "1"),
        ("pid", 2**31),
        ("start_token", 1.5),
        ("user", None),
        ("test", "x" * 513),
        ("since_unix_s", float("nan")),
        ("since_unix_s", float("inf")),
    ],
)
def test_field_of_another_type_is_none(field: str, value: object) -> None:
    assert parse(json.dumps(asdict(Owner.current("t")) | {field: value}).encode()) is None


def test_record_of_an_older_or_newer_version_is_read() -> None:
    fields = asdict(Owner.current("t", lease_id="7"))
    del fields["lease_id"]
    read = parse(json.dumps(fields | {"more": 1}).encode())
    assert read == replace(Owner.current("t"), since_unix_s=fields["since_unix_s"])


def test_missing_field_is_none() -> None:
    fields = asdict(Owner.current("t"))
    del fields["pid"]
    assert parse(json.dumps(fields).encode()) is None


@pytest.mark.parametrize("data", [b"[" * MAX_RECORD_BYTES, b" " * (MAX_RECORD_BYTES + 1), b"[]"])
def test_absurd_json_is_none(data: bytes) -> None:
    assert parse(data) is None


def test_holder_that_runs_is_alive() -> None:
    assert is_alive(Owner.current("t")) is True


def test_holder_that_was_reaped_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        token = host.start_token(process.pid)
        record = replace(Owner.current("t"), pid=process.pid, start_token=token)
        assert is_alive(record) is True
        process.kill()
    assert is_alive(record) is False


def test_other_process_of_the_same_pid_is_not_the_holder() -> None:
    record = Owner.current("t")
    assert record.start_token is not None
    assert is_alive(replace(record, start_token=record.start_token + 1)) is False


def test_holder_before_a_reboot_is_gone() -> None:
    assert is_alive(replace(Owner.current("t"), boot_id="another")) is False


@pytest.mark.parametrize("where", [{"host": "elsewhere"}, {"pid_namespace": 1}])
def test_holder_out_of_sight_is_unknown(where: dict[str, object]) -> None:
    fields = asdict(Owner.current("t")) | where
    record = parse(json.dumps(fields).encode())
    assert record is not None
    assert is_alive(record) is None


def test_record_cannot_steer_a_terminal() -> None:
    record = replace(Owner.current("t"), test="\x1b[2J", command="a\nb")
    assert "\x1b" not in str(record)
    assert "\n" not in str(record)


def test_record_says_who_and_for_how_long() -> None:
    record = Owner.current("suites/test_x.py::test_y")
    said = str(replace(record, since_unix_s=record.since_unix_s - 90))
    assert f"{record.user}@{record.host} pid {os.getpid()} (alive)" in said
    assert "for suites/test_x.py::test_y, 9" in said
