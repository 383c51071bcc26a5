"""The scheduler of `--dist gpu` with nodes that only write down what they are told."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.distribution import Catalogue, GpuScheduling, Rest, Wanted, take_rest

DEVICES = 8


@dataclass(eq=False)
class MockNode:
    """What the scheduler sees of a worker, and a worker that does as it is told."""

    name: str
    shutting_down: bool = False
    sent: list[int] = field(default_factory=list)
    done: int = 0

    @property
    def gateway(self) -> SimpleNamespace:
        return SimpleNamespace(id=self.name)

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def running(self) -> int | None:
        """The test that an xdist worker would now run: one of which it knows the next."""
        known = len(self.sent) - self.done - (not self.shutting_down)
        return self.sent[self.done] if known > 0 else None


@dataclass
class Bench:
    """A scheduler with its workers."""

    scheduling: GpuScheduling
    catalogue: Catalogue
    nodes: list[MockNode]
    reports: list[pytest.CollectReport]

    @property
    def rest(self) -> int:
        return len(self.catalogue.tests)

    def join(self, name: str, catalogue: Catalogue | None = None) -> MockNode:
        node = MockNode(name)
        self.scheduling.add_node(node)
        found = catalogue or self.catalogue
        self.scheduling.learn(node, found)
        self.scheduling.add_node_collection(node, list(found.tests))
        self.nodes.append(node)
        return node

    def end(self, node: MockNode) -> None:
        """The test that a worker runs ends."""
        index = node.running
        assert index is not None
        node.done += 1
        self.scheduling.mark_test_complete(node, index)
        self.settle()

    def settle(self) -> None:
        """Workers pass over the rests behind which something has come."""
        for node in self.nodes:
            if node.running == self.rest:
                node.done += 1
                self.scheduling.mark_test_complete(node, self.rest)

    def jobs(self) -> list[list[int]]:
        """What each worker was sent and has not ended, without the rest."""
        return [[i for i in node.sent[node.done :] if i != self.rest] for node in self.nodes]


def bench(
    widths: Sequence[int],
    *,
    workers: int = 2,
    groups: Mapping[int, str] | None = None,
    durations: Mapping[int, float] | None = None,
    free: Callable[[Collection[int]], int] = lambda _: DEVICES,
    start: bool = True,
) -> Bench:
    """A scheduler whose workers have collected tests of these widths."""
    reports: list[pytest.CollectReport] = []
    hook = SimpleNamespace(pytest_collectreport=lambda *, report: reports.append(report))
    config = cast("pytest.Config", SimpleNamespace(hook=hook))
    tests = tuple(f"t{index}" for index in range(len(widths)))
    wanted = tuple(
        Wanted(devices=width, group=(groups or {}).get(index, tests[index]))
        for index, width in enumerate(widths)
    )
    recorded = {f"t{index}": each for index, each in (durations or {}).items()}
    made = Bench(
        GpuScheduling(workers, config, free, recorded),
        Catalogue(pid=1, tests=tests, wanted=wanted),
        [],
        reports,
    )
    for number in range(workers):
        assert not made.scheduling.collection_is_completed
        made.join(f"gw{number}")
    assert made.scheduling.collection_is_completed
    if start:
        made.scheduling.schedule()
    return made


def finished(made: Bench) -> bool:
    return made.scheduling.tests_finished


def test_each_worker_gets_one_job_and_a_rest() -> None:
    made = bench([1, 1, 1])
    assert [node.sent for node in made.nodes] == [[0, 3], [1, 3]]
    assert [node.running for node in made.nodes] == [0, 1]
    assert [node.gateway.id for node in made.scheduling.nodes] == ["gw0", "gw1"]
    assert made.scheduling.has_pending
    assert not finished(made)


def test_no_worker_is_given_what_it_would_wait_for() -> None:
    made = bench([8, 4, 4, 1], workers=3)
    assert made.jobs() == [[0], [], []]
    assert [node.shutting_down for node in made.nodes] == [False, False, False]
    made.end(made.nodes[0])
    assert made.jobs() == [[1], [2], []]
    made.end(made.nodes[1])
    assert made.jobs() == [[1], [3], []]


def test_longest_first_by_what_was_recorded() -> None:
    made = bench([1, 1, 1], durations={0: 1.0, 1: 3.0, 2: 2.0})
    assert made.jobs() == [[1], [2]]


def test_tests_of_a_group_stay_together_in_their_order() -> None:
    made = bench([2, 1, 2, 1], groups={0: "llama", 2: "llama"})
    assert made.jobs() == [[0, 2], [1]]
    made.end(made.nodes[0])
    assert made.jobs() == [[2], [1]]


def test_a_group_is_as_wide_as_its_widest_test_and_as_long_as_all() -> None:
    groups = {0: "g", 1: "g"}
    made = bench([1, 8, 1], groups=groups, durations={0: 1.0, 1: 1.0, 2: 1.5})
    assert made.jobs() == [[0, 1], []]
    made = bench([1, 8, 1], groups=groups, durations={0: 1.0, 1: 1.0, 2: 2.5})
    assert made.jobs() == [[2], []]


def test_the_run_ends_when_the_last_test_does() -> None:
    made = bench([1, 1, 1])
    one, other = made.nodes
    made.end(one)
    assert one.running == 2
    made.end(other)
    assert other.shutting_down
    assert not one.shutting_down
    assert not finished(made)
    made.end(one)
    assert finished(made)
    assert not made.scheduling.has_pending
    assert made.scheduling.remove_node(one) is None
    assert made.scheduling.remove_node(other) is None
    assert finished(made)


def test_without_tests_there_is_nothing_to_do() -> None:
    made = bench([])
    assert finished(made)
    assert [node.sent for node in made.nodes] == [[], []]
    assert all(node.shutting_down for node in made.nodes)


def test_a_crash_is_blamed_on_the_test_that_ran_and_the_rest_of_the_job_goes_on() -> None:
    made = bench([8, 8, 8, 1], groups={0: "g", 1: "g", 2: "g"})
    one, other = made.nodes
    made.end(one)
    assert made.scheduling.remove_node(one) == "t1"
    assert other.running == 2, "its devices are free now"
    replacement = made.join("gw2")
    made.scheduling.schedule()
    assert made.jobs()[-1] == []
    made.end(other)
    assert other.running == 3
    assert replacement.shutting_down
    made.end(other)
    assert finished(made)


def test_a_crash_after_all_others_have_ended_waits_for_the_replacement() -> None:
    made = bench([1, 1, 1], groups={0: "g", 1: "g"})
    one, other = made.nodes
    made.end(other)
    assert other.shutting_down
    made.scheduling.remove_node(other)
    assert made.scheduling.remove_node(one) == "t0"
    assert not finished(made)
    made.join("gw2")
    made.scheduling.schedule()
    assert made.jobs()[-1] == [1]


def test_a_crash_between_two_jobs_is_nobodys() -> None:
    made = bench([8, 8])
    _, idle = made.nodes
    assert made.scheduling.remove_node(idle) is None


def test_a_crash_before_the_start_is_made_good_by_the_replacement() -> None:
    made = bench([1], start=False)
    assert made.scheduling.remove_node(made.nodes.pop(0)) is None
    assert not made.scheduling.collection_is_completed
    made.join("gw2")
    made.scheduling.schedule()
    assert made.jobs() == [[0], []]


def test_a_test_may_be_asked_for_again() -> None:
    made = bench([1])
    assert made.scheduling.remove_node(made.nodes[0]) == "t0"
    made.scheduling.mark_test_pending("t0")
    assert not finished(made)
    made.join("gw2")
    made.scheduling.schedule()
    assert made.jobs()[-1] == [0]


def test_nothing_is_stolen() -> None:
    made = bench([1])
    with pytest.raises(NotImplementedError):
        made.scheduling.remove_pending_tests_from_node(made.nodes[0], [0])


def test_a_worker_that_is_to_end_gets_nothing_more() -> None:
    made = bench([8, 8, 8])
    for node in made.nodes:
        node.shutdown()
    made.end(made.nodes[0])
    assert made.jobs() == [[], []]


def test_devices_of_others_are_left_to_them() -> None:
    free = {1: 3}
    made = bench([2, 2, 1], free=lambda ours: free[next(iter(ours))])
    assert made.jobs() == [[0], [2]]
    free[1] = 8
    made.end(made.nodes[1])
    assert made.jobs() == [[0], [1]]


def test_where_others_hold_everything_one_test_waits_in_the_queue_of_the_leases() -> None:
    made = bench([2, 1], free=lambda _: 0)
    assert made.jobs() == [[0], []]
    made.end(made.nodes[0])
    assert sorted(made.jobs()) == [[], [1]]


@pytest.mark.parametrize(
    ("tests", "widths", "found"),
    [
        (("t1", "t0"), (1, 1), r"gw1 collected \('t1', .* as its test 0, another worker \('t0'"),
        (("t0",), (1,), "gw1 collected nothing as its test 1"),
        (("t0", "t1"), (1, 2), r"gw1 collected \('t1', Wanted\(devices=2"),
    ],
)
def test_workers_that_collect_differently_end_the_run(
    tests: tuple[str, ...], widths: tuple[int, ...], found: str
) -> None:
    made = bench([1, 1], start=False)
    wanted = tuple(Wanted(devices=w, group=t) for w, t in zip(widths, tests, strict=True))
    other = Catalogue(pid=2, tests=tests, wanted=wanted)
    made.scheduling.learn(made.nodes[1], other)
    made.scheduling.schedule()
    (report,) = made.reports
    assert report.failed
    assert report.nodeid == "gw1"
    report_text = str(report.longrepr)
    assert re.search(found, report_text)
    assert made.jobs() == [[], []]
    assert finished(made)


def test_a_replacement_that_collects_differently_is_let_go() -> None:
    made = bench([8, 8, 8])
    made.scheduling.remove_node(made.nodes[1])
    late = made.join("gw2", Catalogue(pid=3, tests=("x",), wanted=made.catalogue.wanted[:1]))
    made.scheduling.schedule()
    assert late.shutting_down
    assert late.sent == []
    assert [report.nodeid for report in made.reports] == ["gw2"]


# --- the rest ----------------------------------------------------------------------------------


def test_rest_carries_what_the_tests_need(request: pytest.FixtureRequest) -> None:
    rest = Rest.from_parent(request.session, name="rest")
    wanted = (Wanted(devices=2, group="a b::c[\u00e9]"), Wanted(devices=0, group="file x"))
    plain = rest.nodeid
    rest.tell(4711, wanted)
    ids = ["one", "two", rest.nodeid]
    assert take_rest(ids) == Catalogue(pid=4711, tests=("one", "two"), wanted=wanted)
    assert ids == ["one", "two"]
    rest.told = None
    assert rest.nodeid == plain


def test_a_worker_without_tests_has_no_rest() -> None:
    assert take_rest([]) == Catalogue(pid=0, tests=(), wanted=())


# --- whatever happens --------------------------------------------------------------------------


@settings(deadline=None)
@given(st.data())
def test_every_test_runs_once_within_the_devices_whatever_happens(data: st.DataObject) -> None:
    """Workers end tests and crash in any order; a crash loses the one test that ran."""
    widths = data.draw(st.lists(st.integers(0, DEVICES), min_size=1, max_size=12), "widths")
    groups = {
        index: group
        for index in range(len(widths))
        if (group := data.draw(st.sampled_from(["", "a", "b"]), "group"))
    }
    made = bench(widths, workers=data.draw(st.integers(1, 4), "workers"), groups=groups)
    started: list[int] = []
    lost = 0
    for step in range(10 * len(widths)):
        made.settle()
        busy = [n for n in made.nodes if n.running is not None]
        held = [max(widths[i] for i in job) for job in made.jobs() if job]
        assert sum(held) <= DEVICES
        if finished(made):
            break
        assert busy, "nothing runs, and the run has not ended"
        node = data.draw(st.sampled_from(busy), "node")
        assert node.running is not None
        started.append(node.running)
        if lost < 3 and data.draw(st.booleans(), "crash"):
            lost += 1
            made.nodes.remove(node)
            assert made.scheduling.remove_node(node) == f"t{started[-1]}"
            made.join(f"again{step}")
            made.scheduling.schedule()
        else:
            made.end(node)
    assert sorted(started) == list(range(len(widths)))
    assert finished(made)
