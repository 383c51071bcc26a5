"""The rows around a counter-example: each emitted token beside its support."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tprig import evidence
from tprig.bundle import Bundle
from tprig.history import RunHistory

AROUND = 4
"""Rows shown before and after the one that is wrong."""
TOKENS_SHOWN = 24


@dataclass(frozen=True)
class DrawnToken:
    """One token of a row.

    Attributes:
        kind: `both` in the support and finite, `support` in it alone, `finite` alone.
        emitted: it is the row's token.
    """

    token_id: int
    kind: str
    emitted: bool


@dataclass(frozen=True)
class DrawnRow:
    """One emitted token with its support.

    Attributes:
        wrong: it is the row that the finding names.
        tokens: the support and the finite set, the emitted token first.
        more: how many further tokens are not drawn.
    """

    run: str
    row: int
    token_id: int
    logprob: str
    wrong: bool
    support_size: int | None
    tokens: tuple[DrawnToken, ...]
    more: int


def drawn_rows(bundle: Bundle, where: evidence.Location) -> list[DrawnRow]:
    """Return the rows around a finding's place, of its run; empty where it names none."""
    run = bundle.runs.get(where.run or run_of(where.file))
    if run is None or where.request is None or where.row is None:
        return []
    return [
        drawn
        for drawn in _rows(run, where.request, where.row)
        if abs(drawn.row - where.row) <= AROUND
    ]


def run_of(file: str) -> str:
    """The run whose file it is; empty when it is of none."""
    parts = file.split("/")
    return parts[1] if parts[0] == "runs" and len(parts) > 2 else ""


def _rows(run: RunHistory, request: str, wrong: int) -> Iterator[DrawnRow]:
    for record in run.outputs.records if run.outputs else ():
        if not isinstance(record, evidence.Emission) or record.request != request:
            continue
        supports: list[list[int] | None] = list(record.supports or [])
        supports += [None] * (len(record.rows) - len(supports))
        for offset, row in enumerate(record.rows):
            number = record.first + offset
            yield _drawn(run.id, number, row, supports[offset], wrong=number == wrong)


def _drawn(
    run: str, number: int, row: evidence.Row, support: list[int] | None, *, wrong: bool
) -> DrawnRow:
    finite = set(row.finite.token_ids) if row.finite is not None else None
    held = set(support or ())
    every = sorted({row.token_id, *held, *(finite or ())}, key=lambda t: (t != row.token_id, t))
    tokens = tuple(
        DrawnToken(token, _kind(token, held, finite), token == row.token_id)
        for token in every[:TOKENS_SHOWN]
    )
    return DrawnRow(
        run=run,
        row=number,
        token_id=row.token_id,
        logprob="-" if row.logprob is None else f"{float(row.logprob):.4g}",
        wrong=wrong,
        support_size=None if support is None else len(support),
        tokens=tokens,
        more=len(every) - len(tokens),
    )


def _kind(token: int, support: set[int], finite: set[int] | None) -> str:
    if token in support:
        return "both" if finite is None or token in finite else "support"
    return "finite" if finite is not None and token in finite else "neither"
