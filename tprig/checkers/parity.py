"""Judges TP2 against TP1: the same requests, the same tokens, but for what rounding explains.

Two tensor-parallel sizes add the same products in another order, so their logprobs differ in the
last places, and a token can differ where the choice was that close. How often may it be?

Let two engines see the same text, draw with the same seeds (the noise of a row depends on seed and
position only), and let no logprob of a row differ by more than d.

* A recovered, bonus or plain token is the argmax of logprob + Gumbel noise. It can only flip when
  the best two perturbed scores lie within 2d. With probabilities p_i, token i wins by more than t
  with probability p_i e^-t / (p_i e^-t + 1 - p_i) >= p_i e^-t, since the denominator is at most 1;
  summed over i, the winner leads by more than t with probability at least e^-t. So the lead is
  within 2d with probability at most 1 - e^(-2d) <= 2d. (A one-hot draft only takes one token out
  of the race, which renormalises all others alike.)
* A draft is accepted when log u < logprob - draft logprob. -log u is exponential with a density of
  at most 1, and only values between the two engines' thresholds flip: at most d for one-hot
  (greedy) drafts, at most 2d when the draft's logprob differs by d as well.
* The drafts themselves may flip, which moves the text onto another path of the same distribution.
  The drafter's near ties are not on record; what is left of 4d after the two terms above (d for
  greedy drafts) stands for them.
* A support may differ at its edge: a token that is kept by one engine only wins there with at most
  its own probability e. It must lie at the edge, within 2 tolerances of its side's lowest logprob;
  logprobs of such a row are compared after renormalising over the tokens that both kept.

So a row parts with probability at most p = min(1, 4d + e). Rows draw independent noise, and above
its mean a sum of independent trials has no heavier tail than the binomial of their mean (Hoeffding,
1956). With d the largest difference and e the mean edge over the rows compared (a request's last
is the one where it parts), more partings than q = binom.ppf(1 - 1e-6, rows, p) are
`output.tp-parity`. That `rows` shrinks as requests part only adds chances: partings grow with rows,
so a false alarm needs one of at most q + 1 events of 1e-6 each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from scipy.stats import binom

from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.emitted import Emitted, EmittedRow, emitted, ended, place, refusals, where
from tprig.checkers.wording import counted, difference
from tprig.evidence import Claim, Finding, Finite
from tprig.history import RunHistory

ANOMALY = "output.tp-parity"

ROUNDING = {
    ("cpu", "torch.float32"): 64 * 2**-24,
    ("cuda", "torch.float32"): 2 * 2**-11,
    ("cpu", "torch.float16"): 16 * 2**-11,
    ("cuda", "torch.float16"): 16 * 2**-11,
    ("cpu", "torch.bfloat16"): 16 * 2**-8,
    ("cuda", "torch.bfloat16"): 16 * 2**-8,
}
"""How far logits may differ for each unit of the largest, by platform and dtype.

Rounding is relative: logits of 25 in bfloat16 lie 0.125 apart. So this is a number of unit
roundoffs (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1): 2**-8 for
bfloat16, 2**-11 for float16, 2**-24 for float32; products of float32 on CUDA may be TF32 (2**-11),
which is then summed in float32. At logits of about 24, differences of 0.25 (bfloat16, CPU), 1.2e-5
(float32, CPU) and 3.6e-3 (float32, CUDA) were seen.
"""

CONFIDENCE = 1 - 1e-6
"""How sure it must be that rounding does not explain the number of requests that part."""


def check_parity(claim: Claim, runs: Runs) -> Judgement:  # noqa: ARG001 - a checker's signature
    """Judge roles `tp1` and `tp2`: measured `rows` (compared) and `requests`."""
    judgement = Judgement({"rows": 0, "requests": 0})
    if "tp1" not in runs or "tp2" not in runs:
        return judgement
    tolerance = _tolerance(runs["tp1"], runs["tp2"], judgement)
    if tolerance is None:
        return judgement
    pair = _Pair(runs["tp1"], runs["tp2"], tolerance)
    ours = emitted(pair.tp2)
    for name, theirs in emitted(pair.tp1).items():
        if name in ours:
            judgement.measured["requests"] += 1
            pair.compare(theirs, ours[name])
    judgement.findings += [*_served_by_one(pair), *pair.findings]
    judgement.measured["rows"] = pair.rows
    _judge_partings(pair, judgement)
    return judgement


def _tolerance(tp1: RunHistory, tp2: RunHistory, judgement: Judgement) -> float | None:
    """How far rounding may take logits apart, if it is known for what the runs are."""
    kinds = []
    for run in (tp1, tp2):
        engine = run.engine
        dtype = engine.effective.config.get("model.dtype") if engine and engine.effective else None
        platform = engine.arm.platform if engine and engine.arm else None
        kinds.append((platform, dtype))
    rounding = ROUNDING.get((str(kinds[0][0]), str(kinds[0][1])))
    if kinds[0] == kinds[1] and rounding is not None:
        return rounding * max(_logit_scale(tp1), _logit_scale(tp2))
    judgement.missing.append(
        f"expected one known platform and dtype of both runs, found {kinds[0]} and {kinds[1]}"
    )
    return None


def _logit_scale(run: RunHistory) -> float:
    """At most the largest absolute logit of a run, and at least 1.

    The logits are not on record, but logprobs times the temperature are the logits but for a shift,
    and the larger of two numbers is at least half of their distance.
    """
    asked = run.workload.requests if run.workload is not None else []
    temperatures = {request.id: request.sampling.temperature for request in asked}
    spans = (
        temperatures.get(name, 0.0) * _span(row.row.finite)
        for name, request in emitted(run).items()
        for row in request.rows
        if row.row.finite is not None
    )
    return max(1.0, max(spans, default=0.0) / 2)


def _span(finite: Finite) -> float:
    logprobs = [x for x in map(float, finite.logprobs) if math.isfinite(x)]
    return max(logprobs) - min(logprobs) if logprobs else 0.0


@dataclass
class _Pair:
    """Two runs, and what comparing them has shown so far."""

    tp1: RunHistory
    tp2: RunHistory
    tolerance: float
    rows: int = 0
    largest: float = 0.0
    """Largest logprob difference of any row."""
    edge: float = 0.0
    """Sum over rows of the probability of tokens that only one run kept."""
    edge_rows: int = 0
    partings: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def compare(self, tp1: Emitted, tp2: Emitted) -> None:
        """Compare one request up to and with the row where its tokens part."""
        tolerance = self.tolerance / min(1.0, self._temperature(tp2.request))
        others = {row.position: row for row in tp1.rows}
        for row in tp2.rows:
            other = others.get(row.position)
            if other is None:
                continue
            self.rows += 1
            message = self._logprobs(other, row, tolerance)
            if message is not None:
                self.findings.append(self._finding(message, row))
                return
            ours, theirs = row.row.token_id, other.row.token_id
            if ours != theirs:
                text = f"expected token {theirs} as at TP1, found {ours} at TP2"
                self.partings.append(self._finding(text, row))
                return
        self._ends(tp1, tp2)

    def _temperature(self, request: str) -> float:
        asked = self.tp2.workload.requests if self.tp2.workload is not None else []
        return next((r.sampling.temperature for r in asked if r.id == request), 1.0) or 1.0

    def _finding(self, message: str, row: EmittedRow) -> Finding:
        return Finding(anomaly=ANOMALY, message=message, where=where(self.tp2, row))

    def _logprobs(self, tp1: EmittedRow, tp2: EmittedRow, tolerance: float) -> str | None:
        """What no rounding explains in the logprobs of a row that both drew from."""
        a, b = _known(tp1), _known(tp2)
        common = a.keys() & b.keys()
        if not common:
            return _nothing_common(tp1, tp2)
        if a.keys() != b.keys() and _complete(tp1) and _complete(tp2):
            message = _beyond_edge(a, b, 2 * tolerance)
            if message is not None:
                return message
            self.edge_rows += 1
            self.edge += max(_mass(a, a.keys() - common), _mass(b, b.keys() - common))
            a, b = _renormalised(a, common), _renormalised(b, common)
        token = max(common, key=lambda token: _apart(a[token], b[token]))
        apart = _apart(a[token], b[token])
        self.largest = max(self.largest, apart)
        if apart <= tolerance:
            return None
        return (
            f"expected the logprob of token {token} within {tolerance:.3g} of {a[token]!r} as at "
            f"TP1, found {b[token]!r} at TP2 (apart by {apart:.3g})"
        )

    def _ends(self, tp1: Emitted, tp2: Emitted) -> None:
        """Equal tokens end alike; a stream that lacks the end proves nothing."""
        if tp1.finish_reason is None or tp2.finish_reason is None:
            return
        ends = [(x.length, x.finish_reason, x.stop_reason) for x in (tp1, tp2)]
        if ends[0] != ends[1]:
            message = (
                f"expected {counted(tp1.length, 'row')} and finish reason {tp1.finish_reason} as "
                f"at TP1, found {counted(tp2.length, 'row')} and {tp2.finish_reason} at TP2 after "
                f"the same tokens"
            )
            where_ = place(self.tp2, tp2.line, tp2.request, min(tp1.length, tp2.length))
            self.findings.append(Finding(anomaly=ANOMALY, message=message, where=where_))


def _known(row: EmittedRow) -> dict[int, float]:
    """Logprobs by token: the finite ones, or the emitted token's alone."""
    finite: Finite | None = row.row.finite
    if finite is not None:
        return dict(zip(finite.token_ids, map(float, finite.logprobs), strict=True))
    return {} if row.row.logprob is None else {row.row.token_id: float(row.row.logprob)}


def _complete(row: EmittedRow) -> bool:
    return row.row.finite is not None and row.row.finite.complete


def _nothing_common(tp1: EmittedRow, tp2: EmittedRow) -> str | None:
    """Two finite sets must meet; single logprobs of different tokens need not."""
    if not (_complete(tp1) and _complete(tp2)) or _known(tp1) == _known(tp2):
        return None
    return "expected finite tokens that TP1 has too, found none: the rows have no token in common"


def _beyond_edge(a: dict[int, float], b: dict[int, float], reach: float) -> str | None:
    """A token that one side alone keeps, and not at that side's edge."""
    for side, logprobs, others in (("TP1", a, b), ("TP2", b, a)):
        lowest = min(logprobs.values())
        for token in sorted(logprobs.keys() - others.keys()):
            if not logprobs[token] <= lowest + reach:
                return (
                    f"expected the support of TP1 but for its edge, found at TP2 one that "
                    f"{difference(a, b)}: {side} gives token {token} logprob {logprobs[token]!r}, "
                    f"{logprobs[token] - lowest:.3g} above its lowest (the edge: {reach:.3g})"
                )
    return None


def _mass(logprobs: dict[int, float], tokens: set[int]) -> float:
    return math.fsum(math.exp(min(logprobs[token], 0.0)) for token in tokens)


def _renormalised(logprobs: dict[int, float], tokens: set[int]) -> dict[int, float]:
    total = _mass(logprobs, tokens)
    if not total > 0:
        return {token: logprobs[token] for token in tokens}
    return {token: logprobs[token] - math.log(total) for token in tokens}


def _apart(a: float, b: float) -> float:
    """Absolute difference; what is not a number is infinitely far from any."""
    return 0.0 if a == b else abs(a - b) if math.isfinite(a - b) else math.inf


def _served_by_one(pair: _Pair) -> Iterator[Finding]:
    for run, other in ((pair.tp1, pair.tp2), (pair.tp2, pair.tp1)):
        refused, served = refusals(run), emitted(other)
        for request in served.keys() - emitted(run).keys():
            if request not in refused and not ended(run):
                continue
            line = refused[request][0] if request in refused else 1
            told = f"refused ({refused[request][1].message})" if request in refused else "unserved"
            yield Finding(
                anomaly=ANOMALY,
                message=f"expected the request served as in run {other.id}, found it {told}",
                where=place(run, line, request),
            )


def _judge_partings(pair: _Pair, judgement: Judgement) -> None:
    if not pair.rows:
        return
    chance = min(1.0, 4 * pair.largest + pair.edge / pair.rows)
    allowed = int(binom.ppf(CONFIDENCE, pair.rows, chance)) if chance > 0 else 0
    number, requests = len(pair.partings), judgement.measured["requests"]
    judgement.notes |= {
        "largest logprob difference": f"{pair.largest:.3g} (tolerance {pair.tolerance:.3g})",
        "requests that part": f"{number} of {requests} (rounding explains {allowed})",
        "chance that a row parts": f"{chance:.3g}",
        "rows whose supports differ at the edge": str(pair.edge_rows),
    }
    if pair.partings:
        first = pair.partings[0]
        judgement.notes["first parting"] = (
            f"request {first.where.request}, row {first.where.row}: {first.message}"
        )
    if number > allowed:
        judgement.findings += [
            Finding(
                anomaly=ANOMALY,
                message=f"{parting.message}: {number} of {requests} requests part in {pair.rows} "
                f"rows, and a logprob difference of {pair.largest:.3g} explains {allowed}",
                where=parting.where,
            )
            for parting in pair.partings
        ]


PARITY = Checker(
    name="parity",
    roles=("tp1", "tp2"),
    needs=("run", "workload", "outputs"),
    seams=(),
    function=check_parity,
)
