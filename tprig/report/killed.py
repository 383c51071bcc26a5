"""The kill matrix: which planted fault was seen by which checker, and by what it was caught."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from tprig import evidence
from tprig.report.text import code, one_line

COLUMNS = ("fault", "verdict", "first anomaly", "seen by", "time to detection", "run")
NOTHING = "-"


@dataclass(frozen=True)
class Kill:
    """What became of one planted fault.

    Attributes:
        fault: its claim's id, without what all such claims end in.
        verdict: of that claim.
        anomaly: the first to blame; None where nothing was found.
        seen: checkers, each with the anomaly that it would blame first and its findings.
        detection: from the strike to what shows it.
        run: the faulty run, in the bundle's `runs/`.
    """

    fault: str
    verdict: evidence.VerdictName
    anomaly: str | None
    seen: str | None
    detection: str | None
    run: str

    @property
    def cells(self) -> tuple[str, ...]:
        """What it says under each of `COLUMNS`."""
        found = (self.anomaly, self.seen, self.detection)
        return (self.fault, self.verdict, *(what or NOTHING for what in found), self.run)


def kills(claims: Iterable[evidence.Claim], verdicts: Iterable[evidence.Verdict]) -> Iterator[Kill]:
    """What became of each planted fault of a plan, in its order."""
    told = {verdict.claim: verdict for verdict in verdicts}
    for claim in claims:
        verdict = told.get(claim.id)
        if claim.judges and verdict is not None:
            notes = verdict.notes
            yield Kill(
                fault=claim.id.removesuffix("/caught"),
                verdict=verdict.verdict,
                anomaly=notes.get("blamed"),
                seen=notes.get("seen"),
                detection=notes.get("time to detection"),
                run=list(claim.runs.values())[-1],
            )


def kill_table(found: Sequence[Kill]) -> Table:
    """Return the matrix for a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    for kill in found:
        table.add_row(*(Text(one_line(cell)) for cell in kill.cells))
    return table


def kill_markdown(found: Sequence[Kill]) -> str:
    """Return the matrix as a table of a Markdown page; nothing where no fault was planted."""
    if not found:
        return ""
    head = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    rows = [f"| {' | '.join(code(cell, cell=True) for cell in kill.cells)} |" for kill in found]
    return "\n".join(["Planted faults, and what caught them:", "", *head, *rows])
