from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.packing import lower_bound_s
from gpu_scheduler.placement import Topology
from gpu_scheduler.simulate import (
    Entry,
    Links,
    Order,
    Served,
    TraceError,
    main,
    random_trace,
    read_trace,
    replay,
    virtual_gpus,
)

DEVICES = virtual_gpus(8)


def entry(
    count: int,
    duration_s: float,
    arrive_s: float = 0.0,
    *,
    min_free_gib: float | None = None,
    topology: Topology | None = None,
) -> Entry:
    return Entry(
        count=count,
        duration_s=duration_s,
        arrive_s=arrive_s,
        min_free_gib=min_free_gib,
        topology=topology,
    )


def by_arrival(served: Sequence[Served]) -> list[tuple[int, float, float]]:
    """Width, grant and end of each, in the order in which they were asked."""
    ordered = sorted(served, key=lambda each: (each.entry.arrive_s, each.granted_s))
    return [(each.entry.count, each.granted_s, each.ended_s) for each in ordered]


def test_requests_wait_for_each_other() -> None:
    served = replay([entry(8, 10), entry(8, 5, 1)], DEVICES)
    assert by_arrival(served) == [(8, 0, 10), (8, 10, 15)]


def test_a_wide_request_is_not_overtaken_by_what_it_could_use() -> None:
    """The queue of the leases: what is free is kept for the wide one, which came first."""
    served = replay([entry(4, 10), entry(8, 5, 1), entry(1, 2, 2)], DEVICES)
    assert by_arrival(served) == [(4, 0, 10), (8, 10, 15), (1, 15, 17)]


def test_what_no_earlier_request_could_use_is_taken_at_once() -> None:
    pairs = virtual_gpus(4, "pairs")
    blocked = [entry(1, 10), entry(1, 10)]
    trace = [*blocked, entry(2, 5, 1, topology="nvlink"), entry(2, 5, 2, topology="nvlink")]
    served = replay(trace, pairs)
    linked = [each for each in served if each.entry.topology == "nvlink"]
    ids = [device.id for device in pairs]
    assert {each.devices for each in linked} <= {tuple(ids[:2]), tuple(ids[2:])}


def test_workers_take_one_request_at_a_time() -> None:
    served = replay([entry(1, 10), entry(1, 10), entry(1, 10)], DEVICES, workers=2, order="trace")
    assert sorted(each.asked_s for each in served) == [0, 0, 10]


def test_in_the_order_of_the_trace_a_worker_waits_for_its_devices() -> None:
    trace = [entry(8, 10), entry(8, 10), entry(1, 5)]
    orders: tuple[Order, ...] = ("trace", "packed")
    waits_s = [
        sum(s.granted_s - s.asked_s for s in replay(trace, DEVICES, workers=2, order=order))
        for order in orders
    ]
    assert waits_s == [20, 0]


def test_packed_workers_take_the_longest_that_fits() -> None:
    trace = [entry(1, 1), entry(8, 2), entry(4, 9), entry(4, 8)]
    served = replay(trace, DEVICES, workers=8)
    starts = {(each.entry.count, each.entry.duration_s): each.granted_s for each in served}
    assert starts == {(4, 9): 0, (4, 8): 0, (1, 1): 8, (8, 2): 9}


def test_what_arrives_later_is_not_taken_before() -> None:
    served = replay([entry(1, 5, 0), entry(1, 50, 100)], DEVICES, workers=4)
    assert by_arrival(served) == [(1, 0, 5), (1, 100, 150)]


@pytest.mark.parametrize(
    ("impossible", "links"),
    [
        (entry(9, 1), "switch"),
        (entry(1, 1, min_free_gib=81), "switch"),
        (entry(4, 1, topology="nvlink"), "pairs"),
        (entry(2, 1, topology="nvlink"), "none"),
    ],
)
def test_what_can_never_be_served_is_said(impossible: Entry, links: Links) -> None:
    devices = virtual_gpus(8, links)
    with pytest.raises(TraceError, match=r"request 1: .* can never be served by 8 devices"):
        replay([entry(1, 1), impossible], devices)


TRACES = st.lists(
    st.builds(
        Entry,
        count=st.integers(1, 8),
        duration_s=st.floats(0, 100),
        arrive_s=st.floats(0, 100),
        topology=st.sampled_from([None, "nvlink"]),
    ),
    min_size=1,
    max_size=25,
)


@settings(deadline=None)
@given(TRACES, st.none() | st.integers(1, 8), st.sampled_from(["packed", "trace"]))
def test_each_is_served_once_and_no_device_twice_at_a_time(
    trace: list[Entry], workers: int | None, order: Order
) -> None:
    served = replay(trace, DEVICES, workers=workers, order=order)
    assert Counter(each.entry for each in served) == Counter(trace)
    for each in served:
        assert each.entry.arrive_s <= each.asked_s <= each.granted_s
        assert each.ended_s == each.granted_s + each.entry.duration_s
        assert len(set(each.devices)) == each.entry.count
    for device in DEVICES:
        uses = sorted((s.granted_s, s.ended_s) for s in served if device.id in s.devices)
        assert all(before[1] <= after[0] for before, after in pairwise(uses))


@settings(deadline=None)
@given(TRACES)
def test_packed_workers_never_wait_for_what_others_hold(trace: list[Entry]) -> None:
    trace = [Entry(count=each.count, duration_s=each.duration_s) for each in trace]
    served = replay(trace, DEVICES, workers=8)
    assert {each.granted_s - each.asked_s for each in served} == {0.0}
    makespan_s = max(each.ended_s for each in served)
    bound_s = lower_bound_s([(each.count, each.duration_s) for each in trace], 8)
    assert bound_s <= makespan_s * (1 + 1e-9)


def test_random_traces_are_the_seeds() -> None:
    assert random_trace(1) == random_trace(1) != random_trace(2)
    assert {each.count for each in random_trace(1)} == {1, 2, 4, 8}
    assert len(random_trace(1)) == 200


# --- command line ------------------------------------------------------------------------------


def test_command_prints_makespan_waits_utilisation_and_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"count": 8, "duration_s": 10}\n\n{"count": 4, "duration_s": 10.0}\n')
    assert main([str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "width requests   mean wait      median     longest",
        "    4        1      10.0 s      10.0 s      10.0 s",
        "    8        1       0.0 s       0.0 s       0.0 s",
        "makespan          20.0 s",
        "lower bound       15.0 s, of which the makespan is 1.333 times",
        "utilisation      75.0% of 8 devices",
    ]


def test_command_makes_a_trace_of_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--requests", "30", "--workers", "8", "--widths", "1,2"]) == 0
    assert "of which the makespan is 1.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"count": 1, "duration_s": 1}\n{"count": 0, "duration_s": 1}', "line 2: expected a"),
        ('{"count": 1}', "line 1: expected a request: .*duration_s"),
        ('{"count": 1, "duration_s": 1, "gpus": 2}', "line 1: .*gpus"),
        ("{", "line 1"),
        ("\xff", "line 1"),
        ("\n", "holds no request"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(TraceError, match=found):
        read_trace(path)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "expected a trace or --seed, and not both"),
        (["x", "--seed", "1"], "expected a trace or --seed, and not both"),
        (["/no/such/trace"], "cannot be read: No such file or directory"),
        (["--seed", "1", "--devices", "4"], "can never be served by 4 devices"),
    ],
)
def test_what_cannot_be_played_is_2_in_words(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--widths", "1,x"), ("--devices", "0"), ("--workers", "-1")])
def test_numbers_count_from_one(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--seed", "1", *words])
    assert caught.value.code == 2
    found = words[1].rpartition(",")[2]
    assert f"expected a whole number from 1, found {found}" in capsys.readouterr().err
