"""Judges captured calls of the rejection sampler.

Are they what the workers took, do ranks agree, does the reference agree, and do replays return
what production returned, bit for bit? Exactness is proven here, on calls, where two
engines may differ for reasons that are no bug.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.oracle import judged, replays
from tprig.checkers.oracle.drift import drift
from tprig.checkers.oracle.judged import Outcome
from tprig.checkers.oracle.ranks import disagreements
from tprig.checkers.oracle.records import Taken, changed, out_of_bounds, taken, unlinked
from tprig.checkers.oracle.replays import CallReplay, of_call, same_kind
from tprig.evidence import Claim
from tprig.history import Arrays, CallHistory, RunHistory


def check_oracle(claim: Claim, runs: Runs) -> Judgement:
    """Judge every captured call of every run of the claim.

    Measured: `calls` (distinct), `exact` (of those, the ones that every repetition of every arm
    reproduced), `repetitions`, `drifted`, tokens that were `accepted`, `recovered` and `bonus`,
    and for each trait how many calls hold it.
    """
    del claim
    judgement = Judgement()
    judgement.measured.update(calls=0, exact=0, repetitions=0, drifted=0)
    for run in runs.values():
        _Run(run, judgement).check()
    return judgement


class _Run:
    """One run's calls."""

    def __init__(self, run: RunHistory, judgement: Judgement) -> None:
        self._run = run
        self._judgement = judgement

    def check(self) -> None:
        calls = taken(self._run)
        self._judgement.findings += disagreements(self._run, calls)
        for one in calls:
            if one.record.reason is not None:
                self._miss(f"rank {one.rank}, step {one.record.step}: {one.record.reason}")
        for name in dict.fromkeys(o.record.call for o in calls if o.record.call is not None):
            mine = [one for one in calls if one.record.call == name]
            self._call(name, mine)

    def _miss(self, text: str) -> None:
        self._judgement.missing.append(f"run {self._run.id}: {text}")

    def _call(self, name: str, mine: Sequence[Taken]) -> None:
        history = self._run.calls.get(name)
        if history is None:
            # Ranks that captured something else of their own keep no tensors of large calls.
            self._miss(f"captured call {name} is not stored, or cannot be read")
            return
        before = len(self._judgement.findings)
        suspect = [finding for one in mine for finding in changed(one, history)]
        if (fault := out_of_bounds(mine[0], history)) is not None:
            suspect.append(fault)
        if suspect:
            # What became of a call that was changed later says nothing of the sampler.
            self._judgement.findings += suspect
            return
        for one in mine:
            self._judgement.findings += unlinked(one, history)
        self._count(mine[0], history.tensors())
        self._take(judged.production(history, mine[0].where()))
        self._judgement.findings += judged.supports(history, history.tensors(), mine[0].where())
        exact = self._replays(mine[0], history)
        self._judgement.measured["exact"] += exact and len(self._judgement.findings) == before

    def _take(self, outcome: Outcome) -> None:
        self._judgement.findings += outcome.findings
        for text in outcome.undecided:
            self._miss(f"the reference cannot judge {text}")
        if outcome.drifted:
            self._judgement.measured["drifted"] += len(outcome.drifted)
            self._judgement.notes["oracle.backend-drift"] = "; ".join(outcome.drifted)
        if outcome.ambiguous:
            measured = self._judgement.measured
            measured["ambiguous"] = measured.get("ambiguous", 0) + outcome.ambiguous

    def _count(self, one: Taken, tensors: Arrays) -> None:
        self._judgement.measured["calls"] += 1
        for what, number in _tokens(tensors).items():
            self._judgement.measured[what] = self._judgement.measured.get(what, 0) + number
        for trait in one.record.traits:
            if trait not in _COUNTED:
                name = f"{trait} calls"
                self._judgement.measured[name] = self._judgement.measured.get(name, 0) + 1

    # --- replays -----------------------------------------------------------------------------

    def _replays(self, one: Taken, history: CallHistory) -> bool:
        """Judge the replays of a call; True when it was brought to its end on the same kind."""
        exact = False
        for replay in self._run.replays:
            if not any(planned.call == history.id for planned in replay.replay.planned):
                continue
            found = of_call(replay, history.id)
            for moved in (seam for seam in replay.replay.seams if not seam.ok):
                self._miss(f"seam {moved.name}: expected {moved.expected}, found {moved.found}")
            for text in found.missing:
                self._miss(text)
            self._judgement.measured["repetitions"] += len(found.results)
            self._judgement.findings += replays.mutations(found, self._run.id)
            same = same_kind(replay, history)
            # Elsewhere repetitions and arms must agree with each other all the same.
            produced = one.record.digests if same else {}
            self._judgement.findings += replays.differences(found, produced, self._run.id)
            exact |= same and not found.missing
            self._kept(found, history)
        if not exact:
            self._miss(f"call {history.id} was not replayed on the kind of device it ran on")
        return exact

    def _kept(self, found: CallReplay, history: CallHistory) -> None:
        """Judge what a replay returned otherwise than production: supports, or all of it."""
        for line, returned in self._returned(found, history):
            where = found.where(line, self._run.id)
            self._judgement.findings += judged.supports(history, returned, where)
            if not same_kind(found.history, history):
                ties = found.history.replay.top_k_ties
                self._take(drift(history, returned, ties, where))

    def _returned(self, found: CallReplay, history: CallHistory) -> Iterator[tuple[int, Arrays]]:
        """The distinct outputs of a replay, put together from production's and what was kept."""
        seen: set[str] = set()
        for line, result in found.results:
            if result.kept is None or result.kept in seen:
                continue
            seen.add(result.kept)
            try:
                kept = found.history.outputs(result.kept)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is not there
                self._miss(f"outputs {result.kept} of a replay cannot be read: {error}")
                continue
            absent = set(replays.MASKS) - result.digests.keys()
            known = {n: a for n, a in history.tensors().items() if n not in absent}
            yield line, {**known, **kept}


_COUNTED = ("accepted", "recovered", "bonus")


def _tokens(tensors: Arrays) -> Mapping[str, int]:
    drafts = tensors["cu_num_logits"][1:] - tensors["cu_num_logits"][:-1] - 1
    accepted = tensors["num_verified"] - 1
    mine = tensors["num_sampled"] > 0
    return {
        "accepted": int(accepted[mine].sum()),
        "recovered": int((accepted < drafts)[mine].sum()),
        "bonus": int(((accepted == drafts) & (drafts > 0))[mine].sum()),
    }


ORACLE = Checker(
    name="oracle",
    roles=(),
    needs=("run", "workload", "ranks"),
    seams=(
        *("oracle", "model_runner.execute_model", "model_runner.sample"),
        *("rejection_sampler.call", "rejection_sampler.verify", "logits_processor.gather"),
    ),
    function=check_oracle,
)
