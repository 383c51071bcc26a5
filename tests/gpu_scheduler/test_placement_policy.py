"""Who may take what, as pure functions, and what follows from that over whole histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.device import Gpu
from gpu_scheduler.placement import Claim, Request, choose, claim, covers, reserved, uniform
from tests.fakes.nvml import GIB
from tests.gpu_scheduler.test_device import gpu

ONE = Request(count=1, kind="cuda", test="t")


def wants(count: int, *, linked: bool = False) -> Request:
    return replace(ONE, count=count, topology="nvlink" if linked else None)


def gpus(count: int, links: Sequence[tuple[int, int]] = ()) -> tuple[Gpu, ...]:
    """GPUs named `0`, `1`, ..., of which these pairs are linked."""
    both = {*links, *((b, a) for a, b in links)}
    return tuple(
        replace(
            gpu(80 * GIB, used_bytes=0),
            uuid=str(n),
            index=n,
            nvlink_peers=frozenset(str(b) for a, b in both if a == n),
        )
        for n in range(count)
    )


def ids(chosen: Sequence[Gpu] | None) -> str:
    return "none" if chosen is None else "".join(device.uuid for device in chosen)


PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7)]
QUADS = [pair for quad in (range(4), range(4, 8)) for pair in combinations(quad, 2)]
SWITCH = list(combinations(range(8), 2))


# --- which set ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("links", "free", "count", "chosen"),
    [
        ([], "01234567", 2, "01"),
        (SWITCH, "01234567", 2, "01"),
        (SWITCH, "1357", 3, "135"),
        (PAIRS, "01234567", 2, "01"),
        (PAIRS, "1234567", 2, "23"),  # a pair that is whole, not 1 with another
        (PAIRS, "1234567", 1, "1"),  # whose pair is broken already
        (PAIRS, "023467", 1, "0"),
        (PAIRS, "0246", 2, "02"),  # no pair is left: linked ones are only preferred
        (PAIRS, "01234567", 3, "012"),
        (QUADS, "01234567", 2, "01"),
        (QUADS, "0124567", 2, "01"),  # breaks a quad that is broken already, not the whole one
        (QUADS, "1234567", 4, "4567"),
        (QUADS, "0124567", 1, "0"),
        (QUADS, "01234567", 8, "01234567"),
        (PAIRS, "01", 3, "none"),
    ],
)
def test_sets_are_linked_and_break_as_few_others_as_can_be(
    links: list[tuple[int, int]], free: str, count: int, chosen: str
) -> None:
    devices = [device for device in gpus(8, links) if device.uuid in free]
    assert ids(choose(devices, wants(count))) == chosen  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("links", "free", "count", "chosen"),
    [
        (PAIRS, "01234567", 2, "01"),
        (PAIRS, "0246", 2, "none"),
        (QUADS, "0123", 4, "0123"),
        (QUADS, "0124567", 3, "012"),
        (QUADS, "01234567", 5, "none"),
        ([], "01", 1, "0"),  # one device needs no link
        ([], "01", 2, "none"),
    ],
)
def test_links_that_are_demanded_are_there_or_nothing_is_taken(
    links: list[tuple[int, int]], free: str, count: int, chosen: str
) -> None:
    devices = [device for device in gpus(8, links) if device.uuid in free]
    assert ids(choose(devices, wants(count, linked=True))) == chosen  # type: ignore[arg-type]


def test_many_gpus_are_placed_without_trying_all_sets() -> None:
    """16 GPUs in four boxes of four: 12,870 sets of eight."""
    boxes = [pair for first in range(0, 16, 4) for pair in combinations(range(first, first + 4), 2)]
    devices = gpus(16, boxes)
    chosen = choose(devices[2:], wants(4, linked=True))
    assert ids(chosen) == "4567"  # type: ignore[arg-type]
    assert len(choose(devices, wants(8)) or ()) == 8


def test_any_set_is_as_good_where_all_are_linked_or_none() -> None:
    assert not uniform(gpus(8, PAIRS))
    assert uniform(gpus(8, SWITCH))
    assert uniform(gpus(8))
    assert uniform(gpus(1))


# --- what is kept for whom ---------------------------------------------------------------------


def of(count: int, among: str) -> Claim:
    return Claim(count=count, among=tuple(among))


@pytest.mark.parametrize(
    ("claims", "free", "kept"),
    [
        ([], "0123", ""),
        ([of(4, "0123")], "01", "01"),  # draining: what is free stays free for it
        ([of(1, "0123")], "01", "0"),  # it needs no more than one
        ([of(2, "01")], "0123", "01"),  # 2 and 3 are of no use to it: others may pass
        ([of(2, "01"), of(2, "0123")], "0123", "0123"),
        ([of(2, "01"), of(1, "0123")], "0123", "012"),
        ([of(4, "012")], "0123", ""),  # one of its four is in use without a lease: nothing is kept
        ([of(0, "")], "0123", ""),  # being examined
    ],
)
def test_what_is_kept_free(claims: list[Claim], free: str, kept: str) -> None:
    assert reserved(claims, free) == frozenset(kept)


def test_claim_that_demands_links_drains_one_set_and_stays_with_it() -> None:
    devices = gpus(8, PAIRS)
    first = claim(devices, {"4", "0", "1"}, wants(2, linked=True), None)
    assert first == of(2, "01")
    nearer = claim(devices, {"4", "2", "3"}, wants(2, linked=True), first)
    assert nearer == first
    assert claim(devices[1:], {"2"}, wants(2, linked=True), first) == of(2, "23")
    assert claim(devices, {"4"}, wants(2), None) == of(2, "01234567")


@pytest.mark.parametrize(
    ("earlier", "usable", "which"),
    [
        (of(8, "01234567"), "01", "all"),
        (of(2, "01"), "01", "all"),
        (of(2, "01"), "12", "some"),
        (of(3, "01"), "01", "some"),  # it cannot be served: it keeps nothing
        (of(0, ""), "", "some"),
    ],
)
def test_later_request_waits_for_an_earlier_one_that_keeps_all_it_could_use(
    earlier: Claim, usable: str, which: str
) -> None:
    assert covers(earlier, usable) is (which == "all")


# --- over time ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    at: int
    count: int
    among: str
    lasts: int


JOBS = st.builds(
    Job,
    at=st.integers(0, 20),
    count=st.integers(1, 6),
    among=st.sampled_from(["012345", "0123", "45", "135"]),
    lasts=st.integers(1, 6),
).filter(lambda job: job.count <= len(job.among))


def play(jobs: Sequence[Job]) -> list[int]:
    """When each job starts, if all follow the policy in virtual time."""
    devices = gpus(6)
    queue: list[int] = []
    starts: dict[int, int] = {}
    held: dict[str, int] = {}  # until when
    now = 0
    while len(starts) < len(jobs):
        queue += [n for n, job in enumerate(jobs) if job.at == now]
        for n in list(queue):
            ahead = [of(jobs[m].count, jobs[m].among) for m in queue[: queue.index(n)]]
            free = {device.uuid for device in devices if held.get(device.uuid, 0) <= now}
            left = free - reserved(ahead, free)
            usable = [d for d in devices if d.uuid in left and d.uuid in jobs[n].among]
            chosen = choose(usable, wants(jobs[n].count))
            if chosen is not None:
                queue.remove(n)
                starts[n] = now
                assert not {device.id for device in chosen} - free
                held |= dict.fromkeys((device.id for device in chosen), now + jobs[n].lasts)
        now += 1
        assert now < 1000, "somebody starves"
    return [starts[n] for n in range(len(jobs))]


@given(st.lists(JOBS, min_size=1, max_size=12))
def test_nobody_is_delayed_by_whoever_comes_later(jobs: list[Job]) -> None:
    jobs = sorted(jobs, key=lambda job: job.at)
    everybody = play(jobs)
    for n in range(1, len(jobs)):
        assert play(jobs[:n]) == everybody[:n]


def test_wide_request_is_served_once_those_before_it_are_done() -> None:
    narrow = [Job(at=at, count=1, among="012345", lasts=3) for at in range(12)]
    wide = Job(at=4, count=6, among="012345", lasts=1)
    jobs = sorted([*narrow, wide], key=lambda job: job.at)
    assert play(jobs)[jobs.index(wide)] == 4 + 3  # the last of those before it began at 4


def test_narrow_request_passes_on_what_the_wide_one_cannot_use() -> None:
    busy = Job(at=0, count=1, among="0123", lasts=9)
    wide = Job(at=1, count=4, among="0123", lasts=1)
    passes = Job(at=2, count=1, among="012345", lasts=5)
    assert play([busy, wide, passes]) == [0, 9, 2]
