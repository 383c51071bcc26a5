"""Streams as nobody's recorder writes them: judged without an exception, and never passed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from tests.fakes.collectives import claim, history, hung
from tests.fakes.ranks import Rank
from tprig import evidence
from tprig.checkers.collectives import check_rank_order
from tprig.checkers.verdict import judge_claim
from tprig.history import RunHistory, Stream

HUGE = 2**62
Records = list[evidence.RankRecord]
CLAIM = claim(minima={"collectives": 1, "steps": 1, "decisions": 1, "ranks": 2})


def rank(number: int, steps: int = 4) -> Rank:
    made = Rank(number)
    for _ in range(steps):
        made.step().call().call("all_gather").decide("draft", run=True, tokens=1).call()
    return made


def changed(change: Callable[[Records], Records]) -> RunHistory:
    """A run of which one rank's stream was changed."""
    run = history([rank(0), rank(1)])
    stream = run.ranks[1]
    records = tuple(change(list(stream.records)))
    return replace(run, ranks={**run.ranks, 1: replace(stream, records=records)})


def first(records: Records, kind: type[evidence.RankRecord]) -> int:
    return next(i for i, record in enumerate(records) if isinstance(record, kind))


def calls(**fields: object) -> Callable[[Records], Records]:
    """Have the first record of calls say something else."""

    def change(records: Records) -> Records:
        place = first(records, evidence.Calls)
        records[place] = msgspec.structs.replace(records[place], **fields)
        return records

    return change


def decision(**fields: object) -> Callable[[Records], Records]:
    def change(records: Records) -> Records:
        place = first(records, evidence.Decision)
        records[place] = msgspec.structs.replace(records[place], **fields)
        return records

    return change


def shuffled(records: Records) -> Records:
    random.Random(7).shuffle(records)
    return records


def twice(records: Records) -> Records:
    return [record for record in records for _ in range(2)]


def without(kind: type[evidence.RankRecord]) -> Callable[[Records], Records]:
    return lambda records: [record for record in records if not isinstance(record, kind)]


CHANGES: dict[str, Callable[[Records], Records]] = {
    "shuffled": shuffled,
    "backwards": lambda records: records[::-1],
    "twice": twice,
    "empty": lambda _: [],
    "half": lambda records: records[: len(records) // 2],
    "no operations": without(evidence.Operation),
    "no calls": without(evidence.Calls),
    "no decisions": without(evidence.Decision),
    "no coverage": without(evidence.Coverage),
    "first call far away": calls(first=HUGE),
    "calls of an operation that is not there": calls(
        operations=[2**31] * 3, enter_ns=[], leave_ns=[]
    ),
    "calls of operations beyond any number": calls(
        operations=[2**63 - 1, 2**53 + 1], enter_ns=[], leave_ns=[]
    ),
    "left before they were entered": calls(
        operations=[0, 1], enter_ns=[HUGE, HUGE], leave_ns=[0, 0]
    ),
    "a decision after more calls than there are": decision(at=HUGE),
    "a step beyond any number": decision(step=2**62),
    "facts beyond any number": decision(facts={"tokens": {"a": 2**62, "b": 2**62}}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_stream_that_was_changed_is_judged_and_does_not_pass(
    change: Callable[[Records], Records],
) -> None:
    run = changed(change)
    check_rank_order(CLAIM, {"on": run})
    verdict = judge_claim(CLAIM, {"on": run})
    assert verdict.verdict in ("fail", "unknown"), verdict
    assert "Traceback" not in verdict.reason


@pytest.mark.parametrize("place", range(1, 30, 4))
def test_a_stream_that_is_cut_anywhere_is_not_passed(place: int) -> None:
    run = changed(lambda records: records[:place])
    cut = {r: replace(stream, complete=False) for r, stream in run.ranks.items()}
    run = replace(run, ranks=cut)
    check_rank_order(CLAIM, {"on": run})
    assert judge_claim(CLAIM, {"on": run}).verdict != "pass"


@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_without_a_stream_is_not_passed(absent: int) -> None:
    run = history([rank(0), rank(1)])
    run = replace(run, ranks={r: s for r, s in run.ranks.items() if r != absent})
    assert judge_claim(CLAIM, {"on": run}).verdict == "unknown"


def test_groups_that_name_ranks_which_are_not_there_are_judged() -> None:
    made = [rank(number) for number in (0, 1)]
    for one in made:
        one.call(group="pp:0", ranks=[0, 10**6]).call(group="empty", ranks=[])
        one.call(group="twice", ranks=[0, 0, 1])
    check_rank_order(CLAIM, {"on": history(made)})


@pytest.mark.parametrize(
    "record",
    [
        evidence.Ring(rank=1, first=HUGE, operations=[0], enter_ns=[1], leave_ns=[None]),
        evidence.Ring(rank=1, first=0, operations=[2**31], enter_ns=[HUGE], leave_ns=[None]),
        evidence.Ring(rank=9, first=0, operations=[0], enter_ns=[1], leave_ns=[None]),
        evidence.Ring(rank=1, first=0, operations=[], enter_ns=[], leave_ns=[]),
        evidence.Progress(rank=7, at_ns=HUGE, state=None, entered=HUGE, left=0, step=None),
        evidence.Progress(rank=1, at_ns=0, state="dead", entered=0, left=HUGE, step=HUGE),
    ],
)
def test_shared_memory_that_makes_no_sense_is_judged(record: evidence.ForensicRecord) -> None:
    run = hung([rank(0).call(left=False), rank(1)])
    assert run.forensics is not None
    records = (*run.forensics.records, record)
    forensics: Stream[evidence.ForensicRecord] = replace(run.forensics, records=records)
    verdict = judge_claim(CLAIM, {"on": replace(run, forensics=forensics)})
    assert verdict.verdict == "fail", verdict
    assert "Traceback" not in verdict.reason


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        ("calls", "first", -1),
        ("calls", "first", 2**63),
        ("calls", "operations", [-1]),
        ("calls", "operations", [2**63]),
        ("operation", "id", 2**63),
        ("calls", "enter_ns", [-5]),
        ("calls", "leave_ns", [1, 2]),
        ("decision", "at", -1),
        ("decision", "step", -1),
        ("operation", "ranks", [-1]),
        ("operation", "shape", [-8]),
        ("operation", "root", -1),
    ],
)
def test_numbers_that_cannot_be_are_damage_to_whoever_reads_them(
    record: str, field: str, value: object
) -> None:
    given: dict[str, dict[str, object]] = {
        "calls": {"first": 0, "operations": [0], "enter_ns": [1], "leave_ns": [2]},
        "decision": {"step": 0, "at": 0, "kind": "draft", "facts": {}},
        "operation": {
            "id": 0, "layer": "wire", "kind": "all_reduce", "backend": "nccl", "group": "tp:0",
            "ranks": [0, 1], "shape": [8], "dtype": "int8",
        },
    }  # fmt: skip
    whole = {"type": record, **given[record]}
    msgspec.convert(whole, evidence.RankRecord)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(whole | {field: value}, evidence.RankRecord)


def test_what_was_not_changed_passes() -> None:
    """So that none of the above is refused for what it begins with."""
    verdict = judge_claim(CLAIM, {"on": changed(lambda records: records)})
    assert verdict.verdict == "pass", verdict.reason
