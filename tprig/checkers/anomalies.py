"""The names of what can be wrong, each with its definition: one table, in the order of blame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Anomaly:
    """One way in which recorded evidence can be wrong."""

    name: str
    definition: str
    look_at: str
    """Where a person who sees it should look first."""
    verdict: Literal["fail", "unknown", "withdrawn"] = "fail"
    """What a claim is of which nothing else is found."""

    @property
    def family(self) -> str:
        """What the name starts with: `mask`, `output`, `collective`, `engine`, ..."""
        return self.name.partition(".")[0]


_TABLE = (
    Anomaly(
        "mask.absent",
        "Emitted tokens and supports are not one to one: replay is on and a token has no support "
        "of its own, or replay is off and tokens carry supports.",
        "SamplingMaskLists.slice_request and the counts that index it",
    ),
    Anomaly(
        "mask.row-alignment",
        "A token carries a support that belongs to another token's row.",
        "the row arithmetic of SamplingMaskTensors: cu_num_logits, slots, num_sampled",
    ),
    Anomaly(
        "mask.membership",
        "A token was emitted that its own support does not hold.",
        "the verification method: what it samples from against what the mask is taken from",
    ),
    Anomaly(
        "mask.support-alignment",
        "A support differs from the set of tokens whose processed logprob is finite.",
        "which logits the mask is taken from, and the compact or packed copy of it",
    ),
    Anomaly(
        "mask.normalization",
        "The processed probabilities over a row's finite tokens do not sum to one.",
        "the log-softmax of processed logits, and NaN in the logits",
    ),
    Anomaly(
        "mask.width",
        "A support is empty, or wider than top_k without a tie at the edge to explain it.",
        "top-k filtering and the packed-bitmask fallback",
    ),
    Anomaly(
        "oracle.record.logits",
        "The target's logits of a captured call are not what the worker took.",
        "who changed the bundle, and the digest in the rank's stream",
    ),
    Anomaly(
        "oracle.record.draft-logits",
        "The drafter's logits of a captured call are not what the worker took.",
        "who changed the bundle, and the digest in the rank's stream",
    ),
    Anomaly(
        "oracle.record.draft-tokens",
        "The tokens that a captured call verifies are not what the worker took, or not those that "
        "the run verified in that step.",
        "who changed the bundle, and the digest in the rank's stream",
    ),
    Anomaly(
        "oracle.record.boundaries",
        "Where each request's rows begin and end in a captured call is not what the worker took.",
        "who changed the bundle, and the digest in the rank's stream",
    ),
    Anomaly(
        "oracle.record.positions",
        "The positions of a captured call's tokens are not what the worker took.",
        "who changed the bundle, and the digest in the rank's stream",
    ),
    Anomaly(
        "oracle.record.seeds",
        "The seeds of a captured call are not what the worker took, or not what was requested.",
        "who changed the bundle, and the digest in the rank's stream",
    ),
    Anomaly(
        "oracle.record.returned",
        "What a captured call is said to have returned is not what the worker took, or not what "
        "the run emitted from it.",
        "who changed the bundle, and the digest in the rank's stream",
    ),
    Anomaly(
        "oracle.record",
        "Anything else of a captured call is not what the worker took, or contradicts the rest of "
        "the run.",
        "who changed the bundle, and the tensor or the flag that is named",
    ),
    Anomaly(
        "oracle.rank-agreement",
        "Ranks captured different inputs or outputs of the same call of the rejection sampler.",
        "the stage that is named: hidden states, the gather of logits, or what comes after it",
    ),
    Anomaly(
        "oracle.input-mutation",
        "A call of the rejection sampler changed what it was given.",
        "operations in place on logits, drafts, boundaries and positions",
    ),
    Anomaly(
        "oracle.rng-state",
        "A call left the seeds or the device's random generator in another state than it must.",
        "what draws from the device's generator instead of seeds and positions",
    ),
    Anomaly(
        "oracle.decisions",
        "A draft was accepted or refused against the accept test, or not always alike.",
        "the rejection kernel: the accept test, its random draws, and the chunk it reads from",
    ),
    Anomaly(
        "oracle.counts",
        "Numbers of sampled and rejected tokens do not add up, or are not always alike.",
        "get_num_sampled_and_rejected, and memory that is read before it is written",
    ),
    Anomaly(
        "oracle.tokens",
        "A sampled token is not the one that seed and position lead to, or not always alike.",
        "resampling: residual logits, Gumbel noise and the insertion of the resampled token",
    ),
    Anomaly(
        "oracle.reconstruction",
        "Supports, processed logits and logprobs of a call do not follow from its raw logits.",
        "the order of logits processors, top-k, top-p, and what the mask is taken from",
    ),
    Anomaly(
        "oracle.logprobs",
        "Logprobs of a call are not those of its processed logits, or not always alike.",
        "compute_topk_scores and the rows it is given",
    ),
    Anomaly(
        "oracle.ranks",
        "Ranks of a call's tokens are not those in its processed logits, or not always alike.",
        "the ranks kernel and the row it reads",
    ),
    Anomaly(
        "oracle.production",
        "Replays of a call agree with each other, and not with what production returned.",
        "what differs between the engine and a fresh sampler: stale state, races, another vLLM",
    ),
    Anomaly(
        "oracle.backend-drift",
        "On another kind of device a decision or a logprob differs by more than the tolerance.",
        "the reference's margin for the decision, and both devices' kernels",
    ),
    Anomaly(
        "output.tokens",
        "The emitted tokens, or where and why they end, are not what they must be.",
        "whatever the two runs do differently before the row that is named",
    ),
    Anomaly(
        "output.logprobs",
        "Processed logprobs of the same token in the same place differ.",
        "the processed logits and the rows that logprobs are gathered from",
    ),
    Anomaly(
        "output.ranks",
        "A token's rank differs, or contradicts the logprobs of its row.",
        "the ranks kernel and the row it reads",
    ),
    Anomaly(
        "output.acceptance",
        "Drafts, accepted, recovered and bonus tokens do not agree between ranks, runs, emitted "
        "tokens or vLLM's own counters.",
        "the rejection sampler's num_sampled and num_rejected, and what was drafted",
    ),
    Anomaly(
        "output.tp-parity",
        "TP1 and TP2 differ by more than rounding explains.",
        "sharded layers, collectives and the gather of logits",
    ),
    Anomaly(
        "value.divergence",
        "Ranks hold different numbers where each must have the whole of it, at equal shapes.",
        "what is computed on each rank alone since the last collective, and the collective itself",
    ),
    Anomaly(
        "decision.divergence",
        "Ranks settled differently what their collectives follow from.",
        "rank-local state that the decision read: clocks, near ties, budgets, lengths",
    ),
    Anomaly(
        "graph.template",
        "A captured graph holds other collectives on one rank than on another.",
        "what was captured under the graph's key on each rank",
    ),
    Anomaly(
        "graph.replay-vs-eager",
        "One rank replays a graph, or captures one, where another one issues its collectives.",
        "the dispatch to graphs on each rank",
    ),
    Anomaly(
        "collective.group",
        "A rank issued a collective in another group than its peers.",
        "which group coordinator the call was made on",
    ),
    Anomaly(
        "collective.type",
        "Ranks issued collectives of different kinds in the same place.",
        "the branch before the call",
    ),
    Anomaly(
        "collective.root",
        "Ranks name different roots of the same collective.",
        "the source or destination of the call: a rank, or a rank in the group",
    ),
    Anomaly(
        "collective.reduction",
        "Ranks reduce the same collective differently.",
        "the reduction operator of the call",
    ),
    Anomaly(
        "collective.dtype",
        "Ranks give different element types to the same collective.",
        "casts and quantization before the call",
    ),
    Anomaly(
        "collective.size",
        "Ranks give different shapes to a collective that needs equal ones.",
        "the batch size, padding and vocabulary shards of each rank",
    ),
    Anomaly(
        "collective.cross-group-order",
        "Collectives of different groups are interleaved differently, or ranks wait in a circle.",
        "the streams and the order in which the groups' collectives are issued",
    ),
    Anomaly(
        "collective.order",
        "Ranks issued the same collectives of a group in another order.",
        "whatever reorders calls: threads, streams, iteration over sets",
    ),
    Anomaly(
        "collective.missing",
        "A rank did not issue a collective that its peers issued.",
        "the branch around the call, and the decision before it",
    ),
    Anomaly(
        "collective.extra",
        "A rank issued a collective that its peers did not.",
        "the branch around the call, and the decision before it",
    ),
    Anomaly(
        "collective.backend",
        "Ranks carry the same collective by different backends.",
        "what each rank checks when it picks one: size, alignment, topology, environment",
    ),
    Anomaly(
        "rank.stall",
        "A rank did not enter, or did not leave, a collective in which its peers wait.",
        "the saved stacks of that rank",
    ),
    Anomaly(
        "rank.slow",
        "Ranks wait for one that still goes on, too slowly.",
        "what else runs on that rank's device and cores",
    ),
    Anomaly(
        "rank.equal-freeze",
        "All ranks stopped at the same place: they have not parted.",
        "what all of them wait for: the core, the device, the network",
    ),
    Anomaly(
        "record.truncated",
        "A rank's record lacks calls that it made, so that they can not be compared.",
        "the size of the ring, and whether the disk was full",
        verdict="unknown",
    ),
    Anomaly(
        "engine.crash",
        "A process of the engine died, or was lost, while it was needed.",
        "the engine's events and the last lines of its logs",
    ),
    Anomaly(
        "engine.hang",
        "The engine made no progress before a deadline.",
        "the saved Python stacks of its processes",
    ),
    Anomaly(
        "engine.leak",
        "A process, shared-memory segment or socket of the engine outlived it.",
        "the process ids and paths that remained",
    ),
    Anomaly(
        "gpu.leak",
        "A GPU's memory did not return to what it was before the engine, in the time that the "
        "driver needs, or a process still computes on it.",
        "the processes that are named, and what the engine does not free when it is stopped",
    ),
    Anomaly(
        "engine.refusal",
        "A request, or an engine, that was to be served was refused.",
        "vLLM's own words in the refusal",
    ),
    Anomaly(
        "cost.record",
        "A measured run is not the one that was planned in its place, or not as it was written.",
        "who changed the bundle, and the first sample that is named",
    ),
    Anomaly(
        "cost.regression",
        "Arm b loses more than the margin against arm a, by an interval that rules out less.",
        "the metrics that tell where: engine steps, their tail, the first token",
    ),
    Anomaly(
        "gate.missing",
        "A configuration or a request was accepted that vLLM must refuse together with replay.",
        "where vLLM validates its configuration, and the input processor",
    ),
    Anomaly(
        "gate.wrong-reason",
        "It was refused, but not by a ValueError that names the reason.",
        "vLLM's words in the refusal: what else ended the engine",
    ),
    Anomaly(
        "gate.over-refusal",
        "What does not offend was refused as well.",
        "vLLM's words in the refusal, and the rest of the configuration",
    ),
    Anomaly(
        "determinism.stage",
        "Two runs of the same requests on equal engines part at a stage of a model step.",
        "the stage that is named: what in it depends on time, on the order of threads or on memory",
        verdict="withdrawn",
    ),
    Anomaly(
        "fault.survived",
        "A planted fault altered something, and no checker found anything.",
        "the checker that should have seen it, and what the fault altered",
    ),
    Anomaly(
        "fault.misnamed",
        "A planted fault was found, but another anomaly than the one that names it is blamed.",
        "the order of blame, and the fault's own anomaly",
    ),
)

ANOMALIES: Mapping[str, Anomaly] = {anomaly.name: anomaly for anomaly in _TABLE}
"""By name, most specific cause first: when several show, the first is to blame."""

_BLAME = {name: place for place, name in enumerate(ANOMALIES)}


def blame(anomaly: str) -> int:
    """Place in the order of blame; a name that is not in the table comes last."""
    return _BLAME.get(anomaly, len(_BLAME))


def by_blame(anomalies: Iterable[str]) -> list[str]:
    """Names in the order of blame."""
    return sorted(anomalies, key=lambda name: (blame(name), name))


def family(name: str) -> list[str]:
    """Names of a family in the order of blame: `mask`, `oracle`, ..."""
    return [each for each, anomaly in ANOMALIES.items() if anomaly.family == name]
