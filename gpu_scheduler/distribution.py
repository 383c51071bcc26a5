"""Hands tests out to the workers of pytest-xdist, so that none waits for what another one holds.

xdist starts a test only when it knows the one after it, because that decides which fixtures may
stay. A worker would so be promised a test whose devices may not be free when it comes to it. Here
every job is followed by a `Rest`: an item that does nothing, on which a worker waits for its next
job with all fixtures torn down but those of the session. It is the last item of each worker's
collection, and never shown; its id carries to the controller what the tests need.

The controller counts devices and the leases choose them: whatever it may get wrong costs time, for
a test that was handed out too early waits in the queue of `gpu_scheduler.lease` like any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest

from gpu_scheduler.packing import Job, ordered, startable

_REST = "gpu_scheduler.rest "


class Node(Protocol):
    """What is used of `xdist.workermanage.WorkerController`."""

    @property
    def gateway(self) -> Any:  # noqa: ANN401 (execnet's, which is untyped)
        """Knows the worker's name as `id`."""
        ...

    @property
    def shutting_down(self) -> bool:
        """Whether it was told to end, or has ended."""
        ...

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        """Appends items, by their place in its collection, to what it will run."""
        ...

    def shutdown(self) -> None:
        """Tells it to end after what it was sent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the controller must know of one test."""

    devices: int
    """0 for a test that asks for none."""
    group: str
    """Tests of one group run on one worker, one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """What one worker collected."""

    pid: int
    tests: tuple[str, ...]
    wanted: tuple[Wanted, ...]


class Rest(pytest.Item):
    """The item on which a worker waits for its next job."""

    told: str | None = None

    def tell(self, pid: int, wanted: Sequence[Wanted]) -> None:
        """Lets the id carry what the tests before this one need, until it has been sent."""
        self.told = json.dumps([pid, [(each.devices, each.group) for each in wanted]])

    @property
    def nodeid(self) -> str:
        """Its own, but while the collection is sent."""
        return super().nodeid if self.told is None else _REST + self.told

    def setup(self) -> None:
        """Needs nothing."""

    def runtest(self) -> None:
        """Does nothing."""

    def reportinfo(self) -> tuple[str, None, str]:
        """Names what is torn down when a worker ends, should that fail."""
        return "gpu_scheduler", None, "end of a worker's session"


def take_rest(pid_and_tests: list[str]) -> Catalogue:
    """Takes the rest's id off a worker's collection, and returns what both say.

    Args:
        pid_and_tests: The ids that a worker sent; only those of tests are left in it.
    """
    if not pid_and_tests:
        return Catalogue(pid=0, tests=(), wanted=())
    pid, wanted = json.loads(pid_and_tests.pop().removeprefix(_REST))
    return Catalogue(
        pid=pid,
        tests=tuple(pid_and_tests),
        wanted=tuple(Wanted(devices=devices, group=group) for devices, group in wanted),
    )


@dataclass(kw_only=True)
class _Worker:
    """What the controller knows of one worker."""

    catalogue: Catalogue | None = None
    left: list[int] = field(default_factory=list)
    """Tests of its job that have not ended, in the order in which it runs them."""
    width: int = 0
    """Devices that its job may hold."""


class GpuScheduling:
    """The scheduler of `--dist gpu`: xdist's `Scheduling` protocol over `packing`.

    Args:
        numnodes: How many workers are to collect before tests are handed out.
        config: The controller's, told when workers have collected different tests.
        free: Given the pids of our workers, how many devices nobody else holds now.
        durations: Seconds by test id, as recorded.
    """

    def __init__(
        self,
        numnodes: int,
        config: pytest.Config,
        free: Callable[[Collection[int]], int],
        durations: Mapping[str, float],
    ) -> None:
        self.numnodes = numnodes
        self.config = config
        self._free = free
        self._durations = durations
        self._workers: dict[Node, _Worker] = {}
        self._agreed: Catalogue | None = None
        self._tests: dict[int, list[int]] = {}
        self._pending: tuple[Job, ...] = ()
        self._collected: dict[Node, None] = {}
        self._compared = False

    @property
    def nodes(self) -> list[Node]:
        """The workers that are alive."""
        return list(self._workers)

    @property
    def collection_is_completed(self) -> bool:
        """Whether every worker that the run began with has collected."""
        return self._compared or len(self._collected) >= self.numnodes

    @property
    def has_pending(self) -> bool:
        """Whether any test has not ended."""
        return bool(self._pending) or any(worker.left for worker in self._workers.values())

    @property
    def tests_finished(self) -> bool:
        """Whether all tests have ended: a worker needs no word to run the last one of its job."""
        return self.collection_is_completed and not self.has_pending

    def add_node(self, node: Node) -> None:
        """A worker is up; it collects now."""
        self._workers[node] = _Worker()

    def learn(self, node: Node, catalogue: Catalogue) -> None:
        """Takes what the worker's rest has told; comes just before `add_node_collection`."""
        self._workers[node].catalogue = catalogue

    def add_node_collection(self, node: Node, collection: Sequence[str]) -> None:
        """A worker has collected; one that came later must have found what the others did."""
        catalogue = self._workers[node].catalogue
        assert catalogue is not None
        assert len(catalogue.tests) == len(collection)
        if self._agreed is None or self._same(self._agreed, node, catalogue):
            self._collected[node] = None
        else:
            self._workers[node].catalogue = None
            node.shutdown()

    def schedule(self) -> None:
        """All have collected: hands out what can start; called again when a worker joins later."""
        if not self._compared:
            self._compared = True
            mine, *others = ((node, self._workers[node].catalogue) for node in self._collected)
            assert mine[1] is not None
            differ = [node for node, theirs in others if not self._same(mine[1], node, theirs)]
            if not differ:
                self._agreed = mine[1]
                self._plan(mine[1])
        self._hand_out()

    def mark_test_complete(self, node: Node, item_index: int, duration: float = 0) -> None:
        """A test has ended, or a rest, which is when the job after it begins."""
        del duration
        worker = self._workers[node]
        if item_index in worker.left:
            worker.left.remove(item_index)
        if not worker.left:
            worker.width = 0
            self._hand_out()

    def mark_test_pending(self, item: str) -> None:
        """A test is to be run once more, alone."""
        assert self._agreed is not None
        self._requeue([self._agreed.tests.index(item)])
        self._hand_out()

    def remove_pending_tests_from_node(self, node: Node, indices: Sequence[int]) -> None:
        """Never called: nothing is stolen from a worker, which has one job at a time."""
        raise NotImplementedError

    def remove_node(self, node: Node) -> str | None:
        """A worker has gone; what was left of its job is somebody else's now.

        Returns:
            The test in which it died, if it did; that one is not run again.
        """
        worker = self._workers.pop(node)
        self._collected.pop(node, None)
        if not worker.left:
            return None
        assert self._agreed is not None
        crashed, *left = worker.left
        if left:
            self._requeue(left)
        self._hand_out()
        return self._agreed.tests[crashed]

    def _same(self, mine: Catalogue, node: Node, theirs: Catalogue | None) -> bool:
        """Says, in a report, that two workers have collected different tests."""
        if theirs is not None and (mine.tests, mine.wanted) == (theirs.tests, theirs.wanted):
            return True
        report = pytest.CollectReport(
            nodeid=node.gateway.id,
            outcome="failed",
            longrepr=_difference(mine, theirs, node.gateway.id),
            result=[],
        )
        self.config.hook.pytest_collectreport(report=report)
        return False

    def _plan(self, catalogue: Catalogue) -> None:
        groups: dict[str, list[int]] = {}
        for index, wanted in enumerate(catalogue.wanted):
            groups.setdefault(wanted.group, []).append(index)
        for tests in groups.values():
            self._tests[tests[0]] = tests
        self._pending = ordered([self._job(tests) for tests in groups.values()])

    def _requeue(self, tests: list[int]) -> None:
        self._tests[tests[0]] = tests
        self._pending = ordered([*self._pending, self._job(tests)])

    def _job(self, tests: Sequence[int]) -> Job:
        assert self._agreed is not None
        durations = [self._durations.get(self._agreed.tests[index]) for index in tests]
        known = [each for each in durations if each is not None]
        return Job(
            key=tests[0],
            width=max(self._agreed.wanted[index].devices for index in tests),
            duration_s=sum(known) if len(known) == len(tests) else None,
        )

    def _hand_out(self) -> None:
        """Starts what can start, and lets go of workers for whom nothing is left."""
        idle = [
            node
            for node, worker in self._workers.items()
            if worker.catalogue is not None and not worker.left and not node.shutting_down
        ]
        if self._agreed is None or not idle:
            return
        for node, job in zip(idle, self._choose(len(idle)), strict=False):
            self._start(node, job)
        if not self._pending:
            for node in idle:
                if not self._workers[node].left:
                    node.shutdown()

    def _choose(self, workers: int) -> tuple[Job, ...]:
        if not self._pending:
            return ()
        pids = {w.catalogue.pid for w in self._workers.values() if w.catalogue is not None}
        taken = sum(worker.width for worker in self._workers.values())
        chosen = startable(self._pending, self._free(pids) - taken, workers)
        if not chosen and not any(worker.left for worker in self._workers.values()):
            # Others hold what is missing. No event tells when they end, but the leases' queue does.
            return self._pending[:1]
        return chosen

    def _start(self, node: Node, job: Job) -> None:
        assert self._agreed is not None
        worker = self._workers[node]
        worker.left = list(self._tests.pop(job.key))
        worker.width = job.width
        self._pending = tuple(each for each in self._pending if each is not job)
        node.send_runtest_some([*worker.left, len(self._agreed.tests)])


def _difference(mine: Catalogue, theirs: Catalogue | None, name: str) -> str:
    others = () if theirs is None else tuple(zip(theirs.tests, theirs.wanted, strict=True))
    ours = tuple(zip(mine.tests, mine.wanted, strict=True))
    at = next(
        (i for i, (a, b) in enumerate(zip(ours, others, strict=False)) if a != b),
        min(len(ours), len(others)),
    )
    found = others[at] if at < len(others) else "nothing"
    expected = ours[at] if at < len(ours) else "nothing"
    return (
        f"expected: every worker collects the same tests in the same order, with the same needs\n"
        f"found:    {name} collected {found} as its test {at}, another worker {expected}\n"
        f"rule:     tests are handed out by their place in the collection\n"
        f"remedy:   collect without randomness: sort sets, seed generators, name parameters"
    )
