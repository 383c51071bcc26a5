"""What makes a captured call suspect, and what only leaves it open."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.fakes import histories, oracles
from tests.tprig.checkers.oracle_examples import ranks
from tprig import evidence
from tprig.checkers.checker import Judgement
from tprig.checkers.oracle import ORACLE
from tprig.checkers.verdict import judge, judge_claim
from tprig.history import CallHistory, RunHistory

TENSORS = sorted({**oracles.inputs(), **oracles.outputs()})


def check(run: RunHistory) -> Judgement:
    return ORACLE.function(oracles.claim(), {"run": run})


def told(run: RunHistory) -> list[tuple[str, str]]:
    return [(finding.anomaly, finding.message) for finding in check(run).findings]


def flipped(name: str) -> np.ndarray[Any, Any]:
    """The tensor with its last bit the other way."""
    array = np.ascontiguousarray({**oracles.inputs(), **oracles.outputs()}[name])
    data = bytearray(array.tobytes())
    data[-1] ^= 1
    return np.frombuffer(bytes(data), dtype=array.dtype).reshape(array.shape)


# --- what was stored ---------------------------------------------------------------------------


OWN = {
    "logits": "oracle.record.logits",
    "input_ids": "oracle.record.draft-tokens",
    "cu_num_logits": "oracle.record.boundaries",
    "cu_num_logits_np": "oracle.record.boundaries",
    "positions": "oracle.record.positions",
    "seeds": "oracle.record.seeds",
    **dict.fromkeys(oracles.outputs(), "oracle.record.returned"),
}
"""Tensor -> the anomaly that a change of it is; of every other one, `oracle.record`."""


@pytest.mark.parametrize("name", TENSORS)
def test_one_bit_of_any_tensor_is_noticed_by_its_name_and_as_nothing_else(name: str) -> None:
    call = oracles.captured()
    run = oracles.run(
        oracles.with_tensors(call, **{name: flipped(name)}), records={0: oracles.record(call)}
    )
    assert told(run)[0][1].startswith(f"expected {name} of digest ")
    verdict = judge_claim(oracles.claim(), {run.id: run})
    assert verdict.verdict == "fail"
    assert list(verdict.failures) == [OWN.get(name, "oracle.record")]


def test_a_flag_that_was_changed_is_noticed() -> None:
    call = oracles.captured()
    flags = msgspec.structs.replace(call.call.flags, top_k_ties="exact")
    changed = dataclasses.replace(call, call=msgspec.structs.replace(call.call, flags=flags))
    run = oracles.run(changed, records={0: oracles.record(call)})
    assert [a for a, text in told(run) if "flags, requests or digests were changed" in text]


def redone(**changes: Any) -> CallHistory:  # noqa: ANN401 - arrays
    """A call with other tensors, and digests that fit them."""
    given, returned = oracles.inputs(), oracles.outputs()
    for name, array in changes.items():
        (given if name in given else returned)[name] = array
    return oracles.captured(given, returned)


@pytest.mark.parametrize(
    ("changes", "anomaly", "words"),
    [
        (
            {"seeds": np.array([8])},
            "oracle.record.seeds",
            "expected seeds 7, as requested, found 8",
        ),
        (
            {"top_k": np.array([4], dtype=np.int32)},
            "oracle.record",
            "expected top_k 3, as requested, found 4",
        ),
        (
            {"temperature": np.array([0.5], dtype=np.float32)},
            "oracle.record",
            "expected temperature 1.0, as requested, found 0.5",
        ),
        (
            {"input_ids": np.array([3, 5, 9, 13], dtype=np.int32)},
            "oracle.record.draft-tokens",
            "expected drafts [5, 9, 12], as verified in that step, found [5, 9, 13]",
        ),
        (
            {"sampled": np.array([5, 9, 7])},
            "oracle.record.returned",
            "expected sampled tokens [5, 9, 6], as verified in that step, found [5, 9, 7]",
        ),
        (
            {"num_rejected": np.array([0], dtype=np.int32)},
            "oracle.record.returned",
            "expected rejected drafts 1, as verified in that step, found 0",
        ),
    ],
)
def test_what_contradicts_the_rest_of_the_run_is_noticed_with_digests_redone(
    changes: dict[str, Any], anomaly: str, words: str
) -> None:
    assert (anomaly, words) in told(oracles.run(redone(**changes)))


def test_the_reference_notices_another_token_with_all_digests_redone() -> None:
    logits = oracles.inputs()["logits"].copy()
    logits[2, 6], logits[2, 7] = -np.inf, 1.5
    found = {a for a, text in told(oracles.run(redone(logits=logits))) if "reference" in text}
    assert {"oracle.tokens", "oracle.reconstruction"} & found


def test_a_call_out_of_bounds_is_found_and_not_judged_further() -> None:
    run = oracles.run(redone(cu_num_logits=np.array([0, 5], dtype=np.int32)))
    assert [a for a, text in told(run) if "within bounds, found cu_num_logits" in text]


# --- ranks -------------------------------------------------------------------------------------

DIGESTS = oracles.record(oracles.captured()).digests


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"hidden": "4" * 32}, "before the gather: the hidden states"),
        ({"gathered": ["5" * 32]}, "the gathered logits differ"),
        ({}, "after the gather: the gathered logits agree"),
    ],
)
def test_where_logits_part_is_told(second: dict[str, Any], words: str) -> None:
    digests = DIGESTS | {"logits": "e" * 32, "sampled": "d" * 32}
    run = ranks(call="3" * 32, digests=digests, stored=False, **second)
    (message,) = (text for anomaly, text in told(run) if anomaly == "oracle.rank-agreement")
    assert "logits and 1 more differ" in message
    assert words in message


def test_another_input_than_the_logits_is_named() -> None:
    run = ranks(call="3" * 32, digests=DIGESTS | {"seeds": "e" * 32}, stored=False)
    assert [text for _, text in told(run) if "seeds differ; the logits agree" in text]


def test_a_gather_that_changes_a_shard_is_found_where_all_ranks_agree() -> None:
    call = oracles.captured()
    said = {
        rank: oracles.record(call, shard=str(rank) * 32, gathered=["0" * 32, "9" * 32])
        for rank in (0, 1)
    }
    found = told(oracles.run(call, records=said))
    assert {a for a, _ in found} == {"oracle.rank-agreement"}
    assert all("expected rank 1's logits as it gave them into the gather" in m for _, m in found)


def test_a_rank_that_kept_no_such_call_is_named() -> None:
    call = oracles.captured()
    run = oracles.run(call)
    empty = dataclasses.replace(run.ranks[0], records=run.ranks[0].records[1:])
    run = dataclasses.replace(run, ranks={0: run.ranks[0], 1: empty})
    assert ("oracle.rank-agreement", "expected rank 1 to keep the call too, found none") in told(
        run
    )


# --- what leaves it open -----------------------------------------------------------------------


def test_without_a_replay_nothing_is_exact() -> None:
    run = oracles.run(replays=[])
    judgement = check(run)
    assert (judgement.findings, judgement.measured["exact"]) == ([], 0)
    assert judge_claim(oracles.claim(), {run.id: run}).verdict == "unknown"


def test_a_replay_on_another_kind_of_device_alone_does_not_prove_exactness() -> None:
    call = oracles.captured()
    elsewhere = oracles.replay(call, device="cuda", device_name="A GPU")
    judgement = check(oracles.run(call, [elsewhere]))
    assert (judgement.findings, judgement.measured["exact"]) == ([], 0)
    assert any("was not replayed on the kind of device" in text for text in judgement.missing)


def test_repetitions_that_are_missing_are_counted_with_the_reason() -> None:
    call = oracles.captured()
    failure = evidence.ReplayFailure(call=call.id, arm="on", error="deadline", message="60 s")
    records: list[evidence.ReplayRecord] = [
        *(oracles.replayed(call, "off", n) for n in range(2)),
        oracles.replayed(call, "on", 0),
        failure,
    ]
    judgement = check(oracles.run(call, [oracles.replay(call, records)]))
    assert judgement.findings == []
    assert any("1 of 2 repetitions with replay on; deadline: 60 s" in m for m in judgement.missing)


def test_a_call_that_was_not_captured_leaves_the_claim_open_with_the_reason() -> None:
    one = evidence.OracleCall(step=1, number=0, reason="it holds 600 bytes; at most 100 are kept")
    run = oracles.run(records={0: one})
    verdict = judge_claim(oracles.claim(), {run.id: run})
    assert verdict.verdict == "unknown"
    assert "rank 0, step 1: it holds 600 bytes" in verdict.reason


def test_a_seam_that_moved_under_a_replay_leaves_it_open() -> None:
    call = oracles.captured()
    moved = evidence.Seam(
        name="sampler.init", target="x:y", expected="(self, ...)", found="(me)", ok=False
    )
    judgement = check(oracles.run(call, [oracles.replay(call, seams=[moved])]))
    assert any(
        "seam sampler.init: expected (self, ...), found (me)" in m for m in judgement.missing
    )


def test_drift_within_tolerance_passes_and_a_flip_without_a_margin_does_not() -> None:
    call = oracles.captured()
    one = oracles.replayed(call, "off", 0, kept=oracles.KEPT)

    def elsewhere(**changes: Any) -> RunHistory:  # noqa: ANN401 - arrays
        kept = {**oracles.outputs(), **changes}
        other = oracles.replay(
            call,
            [one],
            kept=kept,
            device="cuda",
            device_name="A GPU",
            repetitions=1,
            planned=[evidence.PlannedCall(call=call.id, arms=["off"])],
        )
        return oracles.run(call, [oracles.replay(call), other])

    near = oracles.outputs()["logprobs"] + np.float32(2e-5)
    assert check(elsewhere(logprobs=near)).findings == []
    flip = check(elsewhere(sampled=np.array([5, 9, 7])))
    assert {f.anomaly for f in flip.findings} == {"oracle.backend-drift"}


# --- withdrawn claims lean on it ---------------------------------------------------------------


def test_a_passing_oracle_counts_what_it_saw() -> None:
    run = oracles.run()
    plan_ = histories.plan([oracles.claim()])
    (verdict,) = judge(plan_, {run.id: run})
    assert verdict.verdict == "pass"
    assert verdict.measured == {
        "calls": 1,
        "exact": 1,
        "repetitions": 4,
        "drifted": 0,
        "accepted": 2,
        "recovered": 1,
        "bonus": 0,
        "random calls": 1,
    }
