"""Judges the supports of a run with sampling-mask replay, row by row.

A row is reported once, under the most specific anomaly that explains it: a token that its support
does not hold because the whole support belongs to another row is `mask.row-alignment`, and not
`mask.membership` as well. A support is a set by vLLM's contract, so its order is not judged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from tprig.checkers import segments
from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.emitted import Emitted, EmittedRow, emitted, place, records, where
from tprig.checkers.lengths import length_findings
from tprig.checkers.wording import counted, difference, tokens
from tprig.evidence import Claim, Emission, Finding, Number
from tprig.history import RunHistory

NORMALIZATION_TOLERANCE = 2.0**-15
"""How far the probabilities of a row may sum from 1.

vLLM's log-softmax is float32, whose roundings are at most 2**-24 each, relative. It adds the
exponentials of a row in blocks of 1,024 (10 levels of additions inside a block) and the blocks
one after another (at most 256 for a vocabulary of 2**18); subtracting the maximum and the
logarithm, and the exponentials and the logarithm themselves, add a few units in the last place
times the row's entropy (at most 12.5 nats). That is fewer than 512 roundings: 512 * 2**-24.
"""

Blame = tuple[str, str]
"""An anomaly and the message of its finding."""


def check_masks(claim: Claim, runs: Runs) -> Judgement:  # noqa: ARG001 - a checker's signature
    """Judge role `on`.

    Measured: `rows`; `supports`, rows that have one; `finite_complete`, rows whose finite tokens
    are all known, so that the support must equal them (elsewhere it must hold them); `widths`,
    supports whose width could be judged (ties at the edge of top_k show only in logprobs).
    """
    run = runs.get("on")
    if run is None:
        return Judgement()
    requests = emitted(run)
    masks = _Masks(run, requests)
    findings = [*_unpaired(run), *masks.findings()]
    supports = sum(row.support is not None for row in masks.rows)
    return Judgement(
        measured={
            "rows": len(masks.rows),
            "supports": supports,
            "finite_complete": sum(_complete(row) for row in masks.rows),
            "widths": supports - masks.undecided_widths,
        },
        findings=findings + length_findings(run, requests),
    )


def _complete(row: EmittedRow) -> bool:
    return row.row.finite is not None and row.row.finite.complete


def _unpaired(run: RunHistory) -> Iterator[Finding]:
    """One finding for each emission whose supports do not pair with its rows."""
    for line, record in records(run):
        if not isinstance(record, Emission) or len(record.supports or ()) == len(record.rows):
            continue
        found = (
            "no supports" if record.supports is None else counted(len(record.supports), "support")
        )
        yield Finding(
            anomaly="mask.absent",
            message=f"expected {counted(len(record.rows), 'support')} for rows {record.first} to "
            f"{record.first + len(record.rows) - 1}, found {found}: every emitted token has "
            f"exactly one support",
            where=place(run, line, record.request, record.first, record.step),
        )


class _Masks:
    """The rows of one run, and what is needed to judge each of them."""

    def __init__(self, run: RunHistory, requests: dict[str, Emitted]) -> None:
        self.run = run
        self.rows = [row for request in requests.values() for row in request.rows]
        workload = run.workload
        self.vocab_size = workload.vocab_size if workload is not None else None
        self.top_k = {r.id: r.sampling.top_k for r in workload.requests} if workload else {}
        self._owners: dict[frozenset[int], list[EmittedRow]] | None = None
        self.undecided_widths = 0
        """Supports wider than top_k, without the logprobs to show whether that is a tie."""

    def findings(self) -> Iterator[Finding]:
        """At most one finding a row."""
        for row, mass in zip(self.rows, _masses(self.rows), strict=True):
            blame = self._support(row) or _normalization(row, mass) or self._width(row)
            if blame is not None:
                yield Finding(anomaly=blame[0], message=blame[1], where=where(self.run, row))

    def _support(self, row: EmittedRow) -> Blame | None:
        if row.support is None:
            return None
        if not row.support:
            return "mask.width", (
                f"expected a support that holds token {row.row.token_id}, found an empty one: a "
                f"token was drawn, so something was kept"
            )
        held = frozenset(row.support)
        misfit = _misfit(row, held)
        if misfit is None:
            return _membership(row, held) or self._malformed(row.support, held)
        return self._row_alignment(row, held) or _membership(row, held) or misfit

    def _row_alignment(self, row: EmittedRow, held: frozenset[int]) -> Blame | None:
        owner = self._owner(row, held)
        if owner is None:
            return None
        of = "" if owner.request == row.request else f" of request {owner.request}"
        return "mask.row-alignment", (
            f"expected the support of row {row.position}, found that of row {owner.position}{of} "
            f"(step {owner.step}; {tokens(sorted(held))}): the support equals the tokens with "
            f"finite logprob there, and not here"
        )

    def _owner(self, row: EmittedRow, held: frozenset[int]) -> EmittedRow | None:
        """The row whose finite tokens are this support: of the same request, or a near step."""
        if self._owners is None:
            self._owners = defaultdict(list)
            for other in self.rows:
                if other.row.finite is not None and other.row.finite.complete:
                    self._owners[frozenset(other.row.finite.token_ids)].append(other)
        near = [
            other
            for other in self._owners.get(held, ())
            if other.request == row.request or abs(other.step - row.step) <= 1
        ]
        return min(near, key=lambda other: _distance(row, other), default=None)

    def _malformed(self, support: list[int], held: frozenset[int]) -> Blame | None:
        if len(held) != len(support):
            twice = sorted(token for token, n in Counter(support).items() if n > 1)
            return "mask.support-alignment", (
                f"expected a set of tokens, found {tokens(twice)} more than once in "
                f"{tokens(support)}"
            )
        if self.vocab_size is not None and max(held) >= self.vocab_size:
            outside = sorted(token for token in held if token >= self.vocab_size)
            return "mask.support-alignment", (
                f"expected tokens below the vocabulary's size {self.vocab_size}, found "
                f"{tokens(outside)}"
            )
        return None

    def _width(self, row: EmittedRow) -> Blame | None:
        top_k = self.top_k.get(row.request, 0)
        width = len(row.support or ())
        if top_k <= 0 or width <= top_k:
            return None
        finite = row.row.finite
        listed = finite.logprobs if finite is not None else []
        descending = sorted(map(float, listed), reverse=True)
        beyond = descending[top_k:]
        if any(logprob != descending[top_k - 1] for logprob in beyond):
            return "mask.width", (
                f"expected at most top_k = {top_k} tokens besides ties with the last of them "
                f"(logprob {descending[top_k - 1]!r}), found {width}, the last with "
                f"{descending[-1]!r}"
            )
        if len(descending) < width:
            self.undecided_widths += 1
        return None


def _masses(rows: list[EmittedRow]) -> list[float]:
    lists = [row.row.finite.logprobs if row.row.finite else [] for row in rows]
    flat, lengths = segments.flatten(lists)
    with np.errstate(over="ignore"):
        return list(map(float, segments.sums(np.exp(flat), lengths)))


def _odd(logprob: Number) -> bool:
    return isinstance(logprob, str)


def _misfit(row: EmittedRow, held: frozenset[int]) -> Blame | None:
    """How the support contradicts the row's finite tokens; None when it does not."""
    finite = row.row.finite
    if finite is None:
        return None
    known = set(finite.token_ids)
    if (known == held) if finite.complete else (known <= held):
        return None
    rule = "is" if finite.complete else "holds"
    return "mask.support-alignment", (
        f"expected the support {tokens(sorted(known))}, found one that "
        f"{difference(known, held if finite.complete else held & known)}: a support {rule} the "
        f"tokens with finite processed logprob"
    )


def _membership(row: EmittedRow, held: frozenset[int]) -> Blame | None:
    if row.row.token_id in held:
        return None
    return "mask.membership", (
        f"expected the emitted token {row.row.token_id} in its support, found "
        f"{tokens(sorted(held))} (its processed logprob is {row.row.logprob})"
    )


def _normalization(row: EmittedRow, mass: float) -> Blame | None:
    if row.row.logprob in ("nan", "inf"):
        return "mask.normalization", (
            f"expected a log-probability of token {row.row.token_id}, found {row.row.logprob}"
        )
    finite = row.row.finite
    if finite is None:
        return None
    odd = [(t, x) for t, x in zip(finite.token_ids, finite.logprobs, strict=True) if _odd(x)]
    if odd:
        token, logprob = odd[0]
        return "mask.normalization", (
            f"expected finite logprobs of the finite tokens, found {logprob} of token {token}"
        )
    excess = mass - 1.0
    if excess > NORMALIZATION_TOLERANCE or (finite.complete and excess < -NORMALIZATION_TOLERANCE):
        return "mask.normalization", (
            f"expected probabilities that sum to 1, found 1{excess:+.3g} over "
            f"{counted(len(finite.token_ids), 'token')}: float32 explains "
            f"{NORMALIZATION_TOLERANCE:.3g}"
        )
    return None


def _distance(row: EmittedRow, other: EmittedRow) -> tuple[bool, int, int]:
    apart = abs(other.position - row.position)
    return other.request != row.request, apart, abs(other.step - row.step)


MASKS = Checker(
    name="masks",
    roles=("on",),
    needs=("run", "workload", "outputs"),
    seams=(),
    function=check_masks,
)
