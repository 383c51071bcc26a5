"""What another kind of device may return otherwise: rounding, and what its tie rule accounts for.

One request without drafts. Of its tokens 3 is the likeliest, and 5, 7 and 9 tie at the edge of
top-k 2: one rule keeps 3 and 5, the other one all four.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.fakes import oracles
from tests.fakes.oracles import Arrays
from tprig.checkers.oracle import convert
from tprig.checkers.oracle.drift import DRIFT_NATS, drift
from tprig.checkers.oracle.judged import Outcome, judged
from tprig.checkers.reference.processing import Processor
from tprig.checkers.reference.verification import RequestVerification
from tprig.evidence import Location, TopKTies
from tprig.history import CallHistory

TIED = (5, 7, 9)
KEPT: dict[TopKTies, list[int]] = {"exact": [3, 5], "all": [3, *TIED]}
HERE = Location(file="replays/again/results.jsonl")


def inputs(seed: int, **changes: Any) -> Arrays:  # noqa: ANN401 - arrays
    logits = np.full((1, oracles.VOCAB_SIZE), -4.0, dtype=np.float32)
    logits[0, 3], logits[0, list(TIED)] = 1.0, 0.5
    one = np.zeros(1, dtype=np.int32)
    return {
        **oracles.inputs(),
        "logits": logits,
        "input_ids": np.array([3], dtype=np.int32),
        "positions": np.array([2]),
        "logits_indices": np.array([0]),
        "expanded_idx_mapping": one + oracles.SLOT,
        "expanded_local_pos": one,
        "cu_num_logits": np.array([0, 1], dtype=np.int32),
        "cu_num_logits_np": np.array([0, 1], dtype=np.int32),
        "top_k": one + 2,
        "seeds": np.array([seed]),
        **changes,
    }


def outputs(given: Arrays, ties: TopKTies, kept: list[int] | None = None) -> Arrays:
    """What a backend with this rule returns, by the reference; or one that kept other tokens."""
    kept = KEPT[ties] if kept is None else kept
    processed = np.full_like(given["logits"], -np.inf)
    processed[0, kept] = given["logits"][0, kept]
    token = winner(given, ties)
    mass = np.log(np.exp(processed.astype(np.float64)).sum())
    return {
        "num_verified": np.array([1], dtype=np.int32),
        "num_sampled": np.array([1], dtype=np.int32),
        "num_rejected": np.array([0], dtype=np.int32),
        "sampled": np.array([token]),
        "processed_logits": processed,
        "logprob_token_ids": np.array([[token]]),
        "logprobs": np.array([[processed[0, token] - mass]], dtype=np.float32),
        "ranks": np.array([int((processed >= processed[0, token]).sum())]),
        "cu_num_generated": np.array([0, 1]),
        "rng_after": given["rng"],
    }


def winner(given: Arrays, ties: TopKTies) -> int:
    flags = msgspec.structs.replace(oracles.FLAGS, top_k_ties=ties)
    call = oracles.captured(given, oracles.outputs(), flags).call
    read = Processor(convert.sampler_call(call, given, replay=False))
    return RequestVerification(read, 0, [read.processed(0)]).successor(0).winner


def captured(given: Arrays, ties: TopKTies) -> CallHistory:
    """By another kind of device, whose rule it is."""
    flags = msgspec.structs.replace(
        oracles.FLAGS, device="cuda", device_name="A GPU", top_k_ties=ties
    )
    return oracles.captured(given, outputs(given, ties), flags)


def seed(*, flips: bool) -> int:
    """One by which the rules lead to the same token, or do not."""
    return next(
        each
        for each in range(100)
        if (winner(inputs(each), "exact") != winner(inputs(each), "all")) is flips
    )


def compared(
    given: Arrays, returned: Arrays, mine: TopKTies = "exact", theirs: TopKTies | None = "all"
) -> Outcome:
    return drift(captured(given, mine), returned, theirs, HERE)


def test_the_records_are_what_backends_with_these_rules_return() -> None:
    given = inputs(seed(flips=True))
    for ties in KEPT:
        call = captured(given, ties)
        found = judged(call, call.tensors(), call.tensors(), convert.TIES[ties])
        assert found.discrepancies == ()
    assert winner(given, "exact") != winner(given, "all")


@pytest.mark.parametrize(("mine", "theirs"), [("exact", "all"), ("all", "exact")])
def test_what_the_tie_rules_account_for_is_no_drift(mine: TopKTies, theirs: TopKTies) -> None:
    given = inputs(seed(flips=False))
    returned = outputs(given, theirs)
    apart = abs(returned["logprobs"] - outputs(given, mine)["logprobs"])
    assert apart > 1000 * DRIFT_NATS
    assert compared(given, returned, mine, theirs) == Outcome()


def test_without_another_rule_nothing_is_accounted_for() -> None:
    given = inputs(seed(flips=False))
    told: tuple[TopKTies | None, ...] = ("exact", None)
    for ties in told:
        (finding,) = compared(given, outputs(given, "all"), "exact", ties).findings
        assert finding.anomaly == "oracle.backend-drift"
        assert "nats apart" in finding.message


@pytest.mark.parametrize("off", [-2e-4, 2e-4])
def test_what_is_off_beyond_the_rules_is_drift(off: float) -> None:
    given = inputs(seed(flips=False))
    returned = outputs(given, "all")
    returned["logprobs"] = returned["logprobs"] + np.float32(off)
    (finding,) = compared(given, returned).findings
    assert "is 0.0002 nats apart" in finding.message


def test_a_logprob_that_did_not_move_with_the_support_is_drift() -> None:
    given = inputs(seed(flips=False))
    returned = outputs(given, "all")
    returned["logprobs"] = outputs(given, "exact")["logprobs"]
    assert len(compared(given, returned).findings) == 1


@pytest.mark.parametrize("kept", [[3, 5, 7], [3, *TIED, 11], [3, 7]])
def test_a_support_that_neither_rule_makes_is_not_accounted_for(kept: list[int]) -> None:
    given = inputs(seed(flips=False))
    kept = sorted({winner(given, "all"), *kept})
    (finding,) = compared(given, outputs(given, "all", kept)).findings
    assert "nats apart" in finding.message


def test_a_decision_that_the_rules_make_otherwise_is_counted_and_no_failure() -> None:
    given = inputs(seed(flips=True))
    outcome = compared(given, outputs(given, "all"))
    assert outcome.findings == []
    (text,) = outcome.drifted
    assert "rightly by the rule of either backend" in text


def test_another_decision_than_the_rule_s_own_fails() -> None:
    given = inputs(seed(flips=True))
    returned = outputs(given, "all")
    other = next(t for t in KEPT["all"] if t not in (winner(given, "all"), winner(given, "exact")))
    returned["sampled"], returned["logprob_token_ids"] = np.array([other]), np.array([[other]])
    outcome = compared(given, returned)
    assert outcome.drifted == []
    assert "is decided otherwise, by a margin of" in outcome.findings[0].message


def test_a_decision_is_not_explained_where_no_rows_tie() -> None:
    given = inputs(seed(flips=True))
    given["logits"][0, 7], given["logits"][0, 9] = 0.4, 0.3
    returned = outputs(given, "exact", [3, 5])
    returned["sampled"] = np.array([3 if returned["sampled"][0] != 3 else 5])
    returned["logprob_token_ids"] = returned["sampled"][None]
    outcome = compared(given, returned)
    assert (len(outcome.findings), outcome.drifted) == (1, [])


def test_large_logits_of_which_a_digest_was_kept_are_as_the_rules_make_them() -> None:
    given = inputs(seed(flips=False))
    call = captured(given, "exact")
    tensors = {n: a for n, a in call.tensors().items() if n != "processed_logits"}
    whole = CallHistory(call.id, call.call, lambda: tensors)
    assert drift(whole, outputs(given, "all"), "all", HERE) == Outcome()
