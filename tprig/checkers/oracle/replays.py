"""Whether replays of a call agree: replay off = replay on = production, in every repetition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tprig.evidence import Finding, Location, Replayed, ReplayFailure
from tprig.history import FIRST_RECORD_LINE, CallHistory, ReplayHistory

PRODUCTION = "oracle.production"
MUTATION = "oracle.input-mutation"
ANOMALIES: Mapping[str, str] = {
    "sampled": "oracle.tokens",
    "num_verified": "oracle.decisions",
    "num_sampled": "oracle.counts",
    "num_rejected": "oracle.counts",
    "logprobs": "oracle.logprobs",
    "logprob_token_ids": "oracle.logprobs",
    "cu_num_generated": "oracle.logprobs",
    "processed_logits": "oracle.logprobs",
    "ranks": "oracle.ranks",
    "rng_after": "oracle.rng-state",
}
"""Output -> the anomaly that a difference between replays is."""
MASKS = ("mask_width", "mask_counts", "mask_token_ids", "mask_bits")
RECONSTRUCTION = "oracle.reconstruction"


@dataclass
class CallReplay:
    """What one replay says of one call."""

    history: ReplayHistory
    results: list[tuple[int, Replayed]] = field(default_factory=list)
    failures: list[tuple[int, ReplayFailure]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def where(self, line: int, run: str) -> Location:
        """In the replay's results."""
        return Location(file=f"replays/{self.history.id}/results.jsonl", line=line, run=run)


def of_call(history: ReplayHistory, call: str) -> CallReplay:
    """The part of a replay that is about one call, with what of it is missing."""
    found = CallReplay(history)
    records = history.results.records if history.results is not None else ()
    for line, record in enumerate(records, FIRST_RECORD_LINE):
        if record.call == call and isinstance(record, Replayed):
            found.results.append((line, record))
        elif record.call == call and isinstance(record, ReplayFailure):
            found.failures.append((line, record))
    planned = next((p.arms for p in history.replay.planned if p.call == call), [])
    for arm in planned:
        done = [r for _, r in found.results if r.arm == arm]
        words = [f"{f.error}: {f.message}" for _, f in found.failures if f.arm == arm]
        if len(done) < history.replay.repetitions:
            found.missing.append(
                f"replay {history.id} of call {call}: {len(done)} of "
                f"{history.replay.repetitions} repetitions with replay {arm}"
                + "".join(f"; {word}" for word in words)
            )
    return found


def same_kind(history: ReplayHistory, call: CallHistory) -> bool:
    """True when it ran on the processor that production ran on: then results are bit for bit."""
    flags = call.call.flags
    ran = (history.replay.device, history.replay.device_name)
    return ran == (flags.device, flags.device_name)


def mutations(replay: CallReplay, run: str) -> Iterator[Finding]:
    """Inputs that a call wrote to; the seeds are part of the random state."""
    for line, result in replay.results:
        for name in result.mutated:
            anomaly = "oracle.rng-state" if name == "seeds" else MUTATION
            yield Finding(
                anomaly=anomaly,
                message=f"expected the input {name} as it was given, found it changed by the "
                f"call (replay {result.arm}, repetition {result.repetition + 1})",
                where=replay.where(line, run),
            )


def differences(
    replay: CallReplay, produced: Mapping[str, str], run: str, shown: Sequence[str] = ()
) -> Iterator[Finding]:
    """Compare digests: between repetitions and arms first, then with production's.

    Args:
        replay: on the kind of processor that production ran on.
        produced: digests of production's outputs.
        run: for the location.
        shown: outputs to compare; all by default.
    """
    for name in shown or (*ANOMALIES, *MASKS):
        told = [
            (line, result, result.digests[name])
            for line, result in replay.results
            if name in result.digests
        ]
        if not told:
            if replay.results and name in produced and name not in MASKS:
                yield _lost(name, replay, run)
            continue
        first_line, first, digest = told[0]
        apart = next(((n, r) for n, r, other in told if other != digest), None)
        if apart is not None:
            yield _unequal(name, first, apart[1], replay.where(apart[0], run))
        elif name in produced and produced[name] != digest:
            yield Finding(
                anomaly=PRODUCTION,
                message=f"expected {name} {produced[name]}, which production returned, found "
                f"{digest} in all {len(told)} replays",
                where=replay.where(first_line, run),
            )


def _unequal(name: str, a: Replayed, b: Replayed, where: Location) -> Finding:
    anomaly = ANOMALIES.get(name, RECONSTRUCTION)
    one, other = (f"replay {r.arm}, repetition {r.repetition + 1}" for r in (a, b))
    return Finding(
        anomaly=anomaly,
        message=f"expected {name} {a.digests[name]} as with {one}, found {b.digests[name]} with "
        f"{other}",
        where=where,
    )


def _lost(name: str, replay: CallReplay, run: str) -> Finding:
    line = replay.results[0][0] if replay.results else FIRST_RECORD_LINE
    return Finding(
        anomaly=PRODUCTION,
        message=f"expected {name} among the outputs, as production returned it, found none",
        where=replay.where(line, run),
    )
