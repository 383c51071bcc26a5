"""For each anomaly of captured calls a literal history that shows it; the clean one is shared."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.fakes import oracles
from tprig import evidence
from tprig.history import RunHistory


def _apart(name: str, *, always: bool = False) -> RunHistory:
    """Had a replay returned another tensor of that name."""

    def change(digests: dict[str, str]) -> None:
        digests[name] = "f" * 32

    return oracles.returning(change, always=always)


def _mutating(name: str) -> RunHistory:
    call = oracles.captured()
    records: list[evidence.ReplayRecord] = [
        oracles.replayed(call, arm, n, mutated=[name] if (arm, n) == ("on", 0) else [])
        for arm in oracles._ARMS
        for n in range(2)
    ]
    return oracles.run(call, [oracles.replay(call, records)])


def _reseeded() -> RunHistory:
    call = oracles.captured()
    return oracles.run(
        oracles.with_tensors(call, seeds=np.array([8])), records={0: oracles.record(call)}
    )


def ranks(**second: object) -> RunHistory:
    """Two ranks, the second of which captured something else."""
    call = oracles.captured()
    mine = oracles.record(call)
    return oracles.run(call, records={0: mine, 1: oracles.record(call, **second)})


def _ranks_apart() -> RunHistory:
    call = oracles.captured()
    digests = {t.name: t.digest for t in call.call.tensors} | {"logits": "e" * 32}
    return ranks(call="3" * 32, digests=digests, hidden="4" * 32, stored=False)


def _drifting() -> RunHistory:
    """Another kind of device gives a logprob that is a whole nat apart."""
    call = oracles.captured()
    elsewhere = oracles.outputs()
    elsewhere["logprobs"] = elsewhere["logprobs"] - np.float32(1.0)
    one = oracles.replayed(call, "off", 0, kept=oracles.KEPT)
    other = oracles.replay(
        call,
        [one],
        kept=elsewhere,
        device="cuda",
        device_name="A GPU",
        repetitions=1,
        planned=[evidence.PlannedCall(call=call.id, arms=["off"])],
    )
    return oracles.run(call, [oracles.replay(call), other])


CLEAN = oracles.run()
VIOLATING: Mapping[str, RunHistory] = {
    "oracle.record": _reseeded(),
    "oracle.rank-agreement": _ranks_apart(),
    "oracle.input-mutation": _mutating("logits"),
    "oracle.rng-state": _mutating("seeds"),
    "oracle.decisions": _apart("num_verified"),
    "oracle.counts": _apart("num_sampled"),
    "oracle.tokens": _apart("sampled"),
    "oracle.reconstruction": _apart("mask_counts"),
    "oracle.logprobs": _apart("logprobs"),
    "oracle.ranks": _apart("ranks"),
    "oracle.production": _apart("sampled", always=True),
    "oracle.backend-drift": _drifting(),
}
