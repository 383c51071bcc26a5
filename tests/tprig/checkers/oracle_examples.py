"""For each anomaly of captured calls a literal history that shows it; the clean one is shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fakes import oracles
from tprig import evidence
from tprig.history import CallHistory, RunHistory

Arrays = NDArray[Any]


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


def _stored_otherwise(call: CallHistory | None = None, /, **changes: Arrays) -> RunHistory:
    """Had somebody changed tensors after the worker took them."""
    call = oracles.captured() if call is None else call
    return oracles.run(oracles.with_tensors(call, **changes), records={0: oracles.record(call)})


def _drafted() -> CallHistory:
    """The call with draft logits, which leave each draft no other token."""
    logits = np.full((1, len(oracles.DRAFTS), oracles.VOCAB_SIZE), -np.inf, dtype=np.float32)
    logits[0, np.arange(len(oracles.DRAFTS)), oracles.DRAFTS] = 0.5
    return oracles.captured({**oracles.inputs(), "draft_logits": logits})


def _warmer(logits: Arrays) -> Arrays:
    """One step of float32 up: no decision is another, and no value out of its band."""
    return np.nextafter(logits, np.float32(np.inf), dtype=np.float32)


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
    "oracle.record.logits": _stored_otherwise(logits=_warmer(oracles.inputs()["logits"])),
    "oracle.record.draft-logits": _stored_otherwise(
        _drafted(), draft_logits=_warmer(_drafted().tensors()["draft_logits"])
    ),
    "oracle.record.draft-tokens": _stored_otherwise(
        input_ids=np.array([3, 5, 9, 13], dtype=np.int32)
    ),
    "oracle.record.boundaries": _stored_otherwise(cu_num_logits=np.array([0, 3], dtype=np.int32)),
    "oracle.record.positions": _stored_otherwise(positions=np.array([2, 3, 4, 6])),
    "oracle.record.seeds": _stored_otherwise(seeds=np.array([8])),
    "oracle.record.returned": _stored_otherwise(sampled=np.array([5, 9, 7])),
    "oracle.record": _stored_otherwise(top_p=np.array([0.5], dtype=np.float32)),
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
