"""Judges what a run emitted against the same requests with replay off: equal, bit for bit.

Each request is reported once per anomaly, at the first row where it shows. Where the tokens part,
the rest of the request is a different text and is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tprig.checkers import segments
from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.emitted import misplacements, place, records, where
from tprig.checkers.pairs import Arm, compare
from tprig.evidence import Claim, Emission, Finding, Finite, Row
from tprig.history import RunHistory


def check_outputs(claim: Claim, runs: Runs) -> Judgement:  # noqa: ARG001 - a checker's signature
    """Judge roles `off` and `on`: measured `rows` (compared)."""
    judgement = Judgement({"rows": 0})
    arms = {role: Arm.of(runs[role], f"replay {role}") for role in ("off", "on") if role in runs}
    for arm in arms.values():
        judgement.findings += misplacements(arm.run, arm.requests)
        judgement.findings += _contradictions(arm)
    if "off" in arms:
        judgement.findings += _supports(arms["off"].run)
    if len(arms) == 2:
        for request in arms["off"].requests | arms["on"].requests:
            rows, findings = compare(request, arms["off"], arms["on"])
            judgement.measured["rows"] += rows
            judgement.findings += findings
            judgement.compared += findings
    return judgement


def _supports(run: RunHistory) -> Iterator[Finding]:
    for line, record in records(run):
        if isinstance(record, Emission) and record.supports is not None:
            yield Finding(
                anomaly="mask.absent",
                message=f"expected no supports, found {len(record.supports)}: replay is off",
                where=place(run, line, record.request, record.first, record.step),
            )


# --- one run: do its ranks and logprobs agree? -------------------------------------------------


def _contradictions(arm: Arm) -> Iterator[Finding]:
    """Rows whose rank or logprob contradicts the finite logprobs beside it."""
    rows = [row for request in arm.requests.values() for row in request.rows]
    listed = [
        (row, row.row.finite, float(row.row.logprob))
        for row in rows
        if row.row.finite is not None and row.row.logprob is not None
    ]
    flat, lengths = segments.flatten([finite.logprobs for _, finite, _ in listed])
    own = np.array([logprob for _, _, logprob in listed]).repeat(lengths)
    above = segments.sums(flat > own, lengths).astype(int).tolist()
    not_below = segments.sums(flat >= own, lengths).astype(int).tolist()
    for (row, finite, logprob), low, high in zip(listed, above, not_below, strict=True):
        found = _contradicted_logprob(row.row, finite) or _contradicted_rank(
            row.row, finite, low + 1, high if logprob > float("-inf") else None
        )
        if found is not None:
            yield Finding(anomaly=found[0], message=found[1], where=where(arm.run, row))


def _contradicted_logprob(row: Row, finite: Finite) -> tuple[str, str] | None:
    if row.token_id not in finite.token_ids:
        return None
    beside = finite.logprobs[finite.token_ids.index(row.token_id)]
    if beside == row.logprob:
        return None
    return "output.logprobs", (
        f"expected one logprob of token {row.token_id}, found {row.logprob!r} as the emitted token "
        f"and {beside!r} among the finite ones"
    )


def _contradicted_rank(
    row: Row, finite: Finite, low: int, high: int | None
) -> tuple[str, str] | None:
    if row.rank is None:
        return None
    high = high if finite.complete else None
    if row.rank >= low and (high is None or row.rank <= high):
        return None
    bounds = f"at least {low}" if high is None else f"{low} to {high}"
    return "output.ranks", (
        f"expected a rank of {bounds} for token {row.token_id}, found {row.rank}: a rank counts "
        f"the tokens of the row with a processed logit at least as high"
    )


OUTPUTS = Checker(
    name="outputs",
    roles=("off", "on"),
    needs=("run", "outputs"),
    seams=(),
    function=check_outputs,
)
