"""Copies to the host, counted per committed token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.measured import measured, tensor
from tprig import evidence
from tprig.checkers.ab.copies import copied, copy_after_proposal_ms, inconsistent
from tprig.history import RunHistory, Stream


def run(*records: evidence.RankRecord) -> RunHistory:
    base = measured().runs["copies.b"]
    stream: Stream[evidence.RankRecord] = replace(base.ranks[0], records=records)
    return replace(base, ranks={0: stream})


def test_bytes_and_rows_add_up_over_steps() -> None:
    one = evidence.HostCopies(step=0, tensors=[tensor("ids", "int64", [2, 4], 64)], committed=3)
    two = evidence.HostCopies(step=1, tensors=[tensor("ids", "int64", [1, 4], 32)], committed=1)
    total = copied(run(one, two))
    assert total is not None
    assert (total.committed, total.rows["ids"]) == (4, 3)
    assert total.bytes_per_token == {"ids": pytest.approx(24.0)}


def test_nothing_committed_has_no_quotient() -> None:
    total = copied(run(evidence.HostCopies(step=0, tensors=[], committed=0)))
    assert total is not None
    assert total.bytes_per_token == {}


def test_a_run_that_recorded_none_has_none() -> None:
    assert copied(run()) is None
    assert copied(RunHistory(id="silent")) is None


def test_a_copy_that_ends_before_the_proposal_is_negative() -> None:
    times = evidence.DeviceTimes(
        step=0, copy_start_ms=1.0, copy_end_ms=2.0, proposal_start_ms=1.5, proposal_end_ms=5.0
    )
    assert copy_after_proposal_ms(run(times)) == [-3.0]


def test_sizes_follow_from_shapes() -> None:
    sound = evidence.HostCopies(
        step=0, tensors=[tensor("packed", "uint8", [4, 32], 128)], committed=1
    )
    assert list(inconsistent(run(sound))) == []
    odd = evidence.HostCopies(step=0, tensors=[tensor("ids", "int32", [4], 15)], committed=1)
    assert list(inconsistent(run(odd))) == ["expected 16 bytes of ids [4] int32, found 15"]
