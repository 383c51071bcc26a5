"""The page of anomalies is as the code has it, and each anomaly is proven by something."""

from __future__ import annotations

from tests.docs.anomalies import PAGE, REPLAYED, page, shown_on_cpu
from tests.tprig.checkers.examples import EXAMPLES
from tprig.checkers.anomalies import ANOMALIES, family
from tprig.injected import injected

RECORDS = ("oracle.record", "cost.record")
LITERAL_ALONE = {
    # The bundle is changed, or its records are cut short, after or beside the engine.
    **{name: "tampering with a bundle" for name in ANOMALIES if name.startswith(RECORDS)},
    "record.truncated": "a full disk, or a ring that overflows",
    # It takes another device, or a second run of the same call.
    "oracle.backend-drift": "two kinds of devices",
    "oracle.rng-state": "nothing in production reads the generator, only a replay does",
    # Without CUDA there are neither graphs nor other backends nor memory of a device.
    "graph.template": "CUDA graphs",
    "graph.replay-vs-eager": "CUDA graphs",
    "collective.backend": "several backends of one collective",
    "gpu.leak": "memory of a device",
    # vLLM issues none of them in a dense model at TP2.
    "collective.group": "several groups",
    "collective.root": "collectives with a root",
    "collective.reduction": "other reductions than sums",
    "collective.cross-group-order": "several groups",
    # What comes first in the order of blame is the same parting of ranks.
    "collective.order": "ranks wait in the first of two that are swapped: collective.type",
    "collective.extra": "peers wait for the call that the rank did not come to",
    "rank.equal-freeze": "ranks that are stopped from outside are told as such: rank.stall",
    "rank.slow": "a rank that is waited for longer than a test may take",
    # Another vLLM would have to be given, which refuses otherwise.
    **dict.fromkeys(family("gate"), "a vLLM that refuses less, more or for another reason"),
    # They are about faults.
    "fault.survived": "a checker that sees nothing",
    "fault.misnamed": "a wrong order of blame",
}
"""Anomalies that no planted fault shows without CUDA, and what it would take or who is named."""


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.docs.anomalies"


def test_every_anomaly_is_proven_by_a_fault_or_by_a_literal_history() -> None:
    planted = {name for name in ANOMALIES if shown_on_cpu(name)}
    assert planted | set(REPLAYED) | set(LITERAL_ALONE) == set(ANOMALIES)
    assert not (planted | set(REPLAYED)) & set(LITERAL_ALONE)
    assert set(LITERAL_ALONE) <= set(EXAMPLES)


def test_there_are_thirty_faults_at_least_in_every_family() -> None:
    faults = injected().faults
    assert len(faults) >= 30
    families = {fault.family for fault in faults.values()}
    # These are what the suite of faults plants; others have a suite of their own.
    mine = {fault.family for fault in faults.values() if fault.suite == "faults"}
    assert mine == {"masks", "sampler", "copies", "ranks", "engine"}
    assert families - mine == {"slowness", "stages"}
