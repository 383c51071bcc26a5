"""Random sound runs pass; a single change to one call of one rank is found, and found in its step.

The runs vary in ranks, batch sizes, drafted tokens, idle steps and groups.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.collectives import history
from tests.fakes.ranks import Rank
from tests.tprig.checkers.collectives.test_shapes import judged
from tprig.history import RunHistory

SEEDS = st.integers(0, 2**32 - 1)
SETTINGS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@dataclass(frozen=True)
class Call:
    """One collective of a plan."""

    at: str
    kind: str = "all_reduce"
    shape: tuple[int, ...] = (4, 8)
    dtype: str = "float32"
    group: str = "tp:0"


@dataclass(frozen=True)
class Step:
    """The forward pass of a step, and its drafter."""

    tokens: int
    forward: tuple[Call, ...]
    drafts: tuple[Call, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        return (*self.forward, *self.drafts)


def plan(rng: random.Random) -> list[Step]:
    """What all ranks of a run do."""
    layers, width = rng.randint(1, 3), rng.choice([8, 64])
    drafted, second = rng.randint(0, 3), rng.random() < 0.4
    steps = []
    for _ in range(rng.randint(3, 8)):
        tokens = rng.choice([1, 4, 4, 4, 7])
        shape = (tokens, width)
        forward = [
            Call(f"layer{layer}.py:{part}:1", shape=shape)
            for layer in range(layers)
            for part in ("attention", "mlp")
        ]
        if second:
            forward.insert(1, Call("experts.py:sync:4", shape=(1,), group="ep:0"))
        forward.append(Call("logits.py:gather:9", "all_gather", shape))
        one = [
            Call("drafter.py:mlp:2", shape=(1, width)),
            Call("drafter.py:gather:3", "all_gather", (1, width)),
        ]
        steps.append(Step(tokens, tuple(forward), tuple(one * drafted)))
    return steps


def played(
    steps: list[Step], ranks: int, wrong: int = -1, other: list[Step] | None = None
) -> RunHistory:
    """A run in which every rank keeps to the plan, but for one that keeps to another one."""
    made = []
    for number in range(ranks):
        rank = Rank(number, range(ranks))
        for step in other if other is not None and number == wrong else steps:
            rank.step({"a": step.tokens})
            _play(rank, step.forward)
            rank.decide("draft", run=bool(step.drafts), tokens=len(step.drafts) // 2)
            _play(rank, step.drafts)
        made.append(rank)
    return history(made)


def _play(rank: Rank, calls: tuple[Call, ...]) -> None:
    for call in calls:
        rank.call(call.kind, call.shape, at=call.at, dtype=call.dtype, group=call.group)


@SETTINGS
@given(seed=SEEDS, ranks=st.integers(2, 4))
def test_sound_runs_pass(seed: int, ranks: int) -> None:
    verdict = judged(played(plan(random.Random(seed)), ranks))
    assert (verdict.verdict, verdict.failures) == ("pass", {}), verdict.reason


# --- single changes -----------------------------------------------------------------------------


def _lose(calls: list[Call], place: int) -> None:
    del calls[place]


def _repeat(calls: list[Call], place: int) -> None:
    calls.insert(place, replace(calls[place], at="again.py:again:1"))


def _resize(calls: list[Call], place: int) -> None:
    calls[place] = replace(calls[place], shape=(calls[place].shape[0] + 1, 8))


def _recast(calls: list[Call], place: int) -> None:
    calls[place] = replace(calls[place], dtype="bfloat16")


def _turn(calls: list[Call], place: int) -> None:
    calls[place] = replace(calls[place], kind="reduce_scatter")


def _regroup(calls: list[Call], place: int) -> None:
    calls[place] = replace(calls[place], group="pp:0")


CHANGES = {
    "lost": (_lose, {"collective.missing"}),
    "repeated": (_repeat, {"collective.extra"}),
    "resized": (_resize, {"collective.size"}),
    "recast": (_recast, {"collective.dtype"}),
    "turned": (_turn, {"collective.type"}),
    "regrouped": (_regroup, {"collective.group"}),
}
"""Change -> what it may be called where most ranks show what is right."""


@pytest.mark.parametrize("change", CHANGES)
@SETTINGS
@given(seed=SEEDS, ranks=st.integers(3, 4))
def test_a_single_change_is_named_and_found_in_its_step_on_its_rank(
    seed: int, ranks: int, change: str
) -> None:
    rng = random.Random(seed)
    steps = plan(rng)
    number, wrong = rng.randrange(len(steps)), rng.randrange(ranks)
    alter, names = CHANGES[change]
    forward = list(steps[number].forward)
    alter(forward, rng.randrange(len(forward)))
    other = [*steps]
    other[number] = replace(steps[number], forward=tuple(forward))
    verdict = judged(played(steps, ranks, wrong, other))
    assert verdict.verdict == "fail"
    (finding,) = verdict.findings
    assert finding.anomaly in names, finding.message
    assert (finding.where.rank, finding.where.step) == (wrong, number), finding.message


@pytest.mark.parametrize("change", CHANGES)
@SETTINGS
@given(seed=SEEDS)
def test_between_two_ranks_it_is_found_in_its_step_whoever_is_right(seed: int, change: str) -> None:
    rng = random.Random(seed)
    steps = plan(rng)
    number, wrong = rng.randrange(len(steps)), rng.randrange(2)
    forward = list(steps[number].forward)
    CHANGES[change][0](forward, rng.randrange(len(forward)))
    other = [*steps]
    other[number] = replace(steps[number], forward=tuple(forward))
    verdict = judged(played(steps, 2, wrong, other))
    assert verdict.verdict == "fail"
    (finding,) = verdict.findings
    assert finding.where.step == number, finding.message
    if CHANGES[change][1].isdisjoint({"collective.missing", "collective.extra"}):
        assert finding.anomaly in CHANGES[change][1]
