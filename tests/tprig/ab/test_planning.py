"""The plan: everything that decides the verdict, before anything runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tprig.ab import ArmError, Arms, Comparing, Design, Options
from tprig.ab.shapes import SHAPES, workload
from tprig.checkers.ab.chain import digest, roles
from tprig.evidence import Claim

OPTIONS = Options(
    model=Path("/model"),
    python="/usr/bin/python3",
    platform="cpu",
    tensor_parallel_size=1,
    dtype="float32",
    bundle=Path("/bundle"),
    overlays=Path("/overlays"),
    arms=Arms(b=("replay=on",)),
    design=Design(shapes=("smoke",), seed=3),
)


def cost(options: Options = OPTIONS, shape: str = "smoke") -> Claim:
    return Comparing(options, shape).claims[0]


def designed(**changes: object) -> Claim:
    design = dataclasses.replace(OPTIONS.design, **changes)  # type: ignore[arg-type]
    return cost(dataclasses.replace(OPTIONS, design=design))


def test_every_run_has_a_role_before_it_is_made() -> None:
    claim = cost()
    assert claim.comparison is not None
    assert list(claim.runs) == roles(claim.comparison)
    assert len(set(claim.runs.values())) == 22
    assert claim.runs["p000.a"] == "ab-tp1-smoke-p000-a"
    assert claim.minima == {"pairs": 10}


def test_the_same_options_plan_the_same() -> None:
    assert digest(cost()) == digest(cost())


def test_whatever_decides_the_verdict_is_in_the_digest() -> None:
    changed: list[Claim] = [
        designed(pairs=12),
        designed(seed=4),
        designed(margin=0.03),
        designed(gates=("step_p95",)),
        designed(equivalence=True),
        designed(confidence=0.9),
        designed(warm_ups=1),
        designed(resamples=1000),
        designed(faults=("slow-10",)),
        designed(max_foreign_load=None),
        designed(only_differs=("tree",)),
    ]
    assert len({digest(claim) for claim in [cost(), *changed]}) == len(changed) + 1


def test_a_slowdown_is_planted_in_every_pair_and_a_stall_in_one_of_ten() -> None:
    claim = designed(faults=("slow-10", "stall"))
    assert claim.comparison is not None
    assert claim.comparison.planted["slow-10"] == list(range(10))
    assert len(claim.comparison.planted["stall"]) == 1


def test_an_a_a_is_of_identical_arms() -> None:
    claim = cost(dataclasses.replace(OPTIONS, arms=Arms()))
    assert claim.comparison is not None
    assert claim.comparison.identical
    planted = designed(faults=("slow-10",))
    assert planted.comparison is not None
    assert not planted.comparison.identical


def test_arms_that_do_not_differ_are_refused() -> None:
    with pytest.raises(ArmError, match="the arms do not differ"):
        cost(dataclasses.replace(OPTIONS, arms=Arms(b=("replay=off",))))


def test_an_odd_number_of_pairs_is_refused() -> None:
    with pytest.raises(ArmError, match="expected an even number of pairs"):
        designed(pairs=9)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_shapes_keep_as_many_requests_running_as_they_say(platform: str) -> None:
    for name, shape in SHAPES["cuda" if platform == "cuda" else "cpu"].items():
        if name.startswith("c"):
            assert shape.concurrent == int(name[1:])
        assert shape.requests >= shape.concurrent
        assert shape.prompt_tokens[1] + shape.max_tokens < shape.max_model_len


def test_requests_are_drawn_by_seed_and_end_by_their_length() -> None:
    one, again = (workload("cpu", "c16", 1, 256) for _ in range(2))
    assert one == again != workload("cpu", "c16", 2, 256)
    assert {r.sampling.max_tokens for r in one.requests} == {12}
    assert all(r.sampling.ignore_eos and r.sampling.logprobs is None for r in one.requests)
    assert len({r.sampling.seed for r in one.requests}) == len(one.requests)
