"""Compares a replay on another kind of device with production: decisions, then logprobs.

Rounding differs there, and so may the rule for ties at the top-k edge. What the rule accounts for
the reference computes exactly, and it is no drift; rounding has a tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tprig.checkers.oracle import convert
from tprig.checkers.oracle.judged import Outcome, at, judged
from tprig.checkers.reference import MalformedCallError, Side, Subject, TieRule, Ties
from tprig.evidence import Finding, Location, TopKTies
from tprig.history import Arrays, CallHistory

DRIFT = "oracle.backend-drift"
DRIFT_NATS = 1e-4
"""Largest difference of a logprob, and margin of a flipped decision, between kinds of devices."""
DECIDED = (Subject.TOKENS, Subject.DECISIONS, Subject.COUNTS)


def drift(call: CallHistory, outputs: Arrays, ties: TopKTies | None, where: Location) -> Outcome:
    """Compare what another kind of device returned.

    Args:
        call: the captured call.
        outputs: all that the replay returned.
        ties: the replay's rule; None, where it was not told, allows for no other than production's.
        where: for the findings.
    """
    return _Drift(call, outputs, ties or call.call.flags.top_k_ties, where).outcome()


@dataclass(frozen=True)
class _Legal:
    """What the reference says of one side's decisions, by the rule of that side."""

    margins: dict[int, float] = field(default_factory=dict)
    """Request that the reference decides otherwise -> by how much, in nats; inf where the outcome
    is not a matter of degree."""
    whole: bool = False
    """Every request could be judged."""


class _Drift:
    def __init__(self, call: CallHistory, outputs: Arrays, ties: TopKTies, where: Location) -> None:
        self._call, self._where = call, where
        self._mine, self._theirs = call.tensors(), outputs
        rules = [convert.TIES[name] for name in (call.call.flags.top_k_ties, ties)]
        self._sides = [
            (Side(rule, convert.widened(call.call, held).get("processed_logits")), held)
            for rule, held in zip(rules, (self._mine, self._theirs), strict=True)
        ]
        read = convert.sampler_call(call.call, self._mine, replay=False)
        self._ties = Ties(read, *(side for side, _ in self._sides))

    def outcome(self) -> Outcome:
        outcome = Outcome()
        flipped = self._flipped()
        legal = [self._legal(side.tie_rule, held) for side, held in self._sides if flipped]
        for i in flipped:
            name = self._call.call.requests[i]
            text, tolerated = self._flip(i, legal)
            text = f"request {name} is decided otherwise, {text}"
            if tolerated:
                outcome.drifted.append(text)
            else:
                outcome.findings.append(self._finding(text, name))
        outcome.findings += self._apart(flipped)
        return outcome

    def _finding(self, text: str, request: str) -> Finding:
        return Finding(
            anomaly=DRIFT,
            message=f"expected production's decisions within {DRIFT_NATS:g} nats, found that "
            f"{text}",
            where=at(self._where, request),
        )

    # --- decisions ---------------------------------------------------------------------------

    def _flipped(self) -> list[int]:
        """Requests whose counts or tokens are others."""
        mine, theirs = self._mine, self._theirs
        return [
            i
            for i, (a, b) in enumerate(zip(_tokens(mine), _tokens(theirs), strict=True))
            if a != b
            or mine["num_sampled"][i] != theirs["num_sampled"][i]
            or mine["num_rejected"][i] != theirs["num_rejected"][i]
        ]

    def _legal(self, rule: TieRule, outputs: Arrays) -> _Legal:
        try:
            judgement = judged(self._call, self._mine, outputs, rule)
        except MalformedCallError:
            # Then there is no margin, and the flip is a failure.
            return _Legal()
        margins: dict[int, float] = {}
        for each in judgement.discrepancies:
            if each.what in DECIDED:
                margin = np.inf if each.margin is None else each.margin
                margins[each.request] = max(margin, margins.get(each.request, 0.0))
        return _Legal(margins, whole=not judgement.undecided)

    def _flip(self, i: int, legal: Sequence[_Legal]) -> tuple[str, bool]:
        """How it is told, and whether it is tolerated."""
        margins = [side.margins[i] for side in legal if i in side.margins]
        if margins:
            margin = max(margins)
            return f"by a margin of {margin:.3g} nats", margin <= DRIFT_NATS
        if all(side.whole for side in legal) and any(map(self._ties.part, self._live(i))):
            return "as ties at the top-k edge are: rightly by the rule of either backend", True
        return "by a margin of unknown nats", False

    def _live(self, i: int) -> range:
        """Rows of which something came, on either side."""
        first = int(self._mine["cu_num_logits"][i])
        held = (self._mine, self._theirs)
        return range(first, first + max(int(each["num_verified"][i]) for each in held))

    # --- logprobs ----------------------------------------------------------------------------

    def _apart(self, flipped: Sequence[int]) -> Iterator[Finding]:
        if "logprobs" not in self._mine or "logprobs" not in self._theirs:
            return
        for i, request in enumerate(self._call.call.requests):
            live = self._live(i)
            if i in flipped or not len(live):
                continue
            apart = max(map(self._distance, live))
            if not apart <= DRIFT_NATS:
                text = f"a logprob of request {request} is {apart:.3g} nats apart"
                yield self._finding(text, request)

    def _distance(self, row: int) -> float:
        """Of the sampled token's logprobs, but for what the tie rules account for, in nats."""
        a, b = (float(held["logprobs"][row, 0]) for held in (self._mine, self._theirs))
        if a == b and np.isinf(a):
            return 0.0
        token = int(self._mine["logprob_token_ids"][row, 0])
        distance = abs(b - a - self._ties.shift(row, token))
        return np.inf if np.isnan(distance) else distance


def _tokens(outputs: Arrays) -> list[list[int]]:
    verified = outputs["num_verified"]
    return [part.tolist() for part in np.split(outputs["sampled"], np.cumsum(verified)[:-1])]
