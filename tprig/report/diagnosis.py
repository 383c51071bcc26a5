"""A diagnosis of this machine on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tprig.doctor.diagnosis import ALL, Ability, Diagnosis, Line, Status
from tprig.report.text import one_line

STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "missing": "bold red"}


def diagnosis(found: Diagnosis) -> RenderableType:
    """Return a line for each thing looked at, with its remedy, then what can run."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in found.lines:
        table.add_row(Text(line.status, style=STYLES[line.status]), line.name, _finding(line))
    return Group(table, Text(), *(_ability(ability, found) for ability in _ordered()))


def _finding(line: Line) -> Text:
    text = Text(one_line(line.found))
    if line.remedy is not None:
        text.append(f"\n{one_line(line.remedy)}", style="italic")
    return text


def _ordered() -> list[Ability]:
    return sorted(ALL, key=lambda ability: (ability.platform, ability.tensor_parallel_size))


def _ability(ability: Ability, found: Diagnosis) -> Text:
    name = f"{ability.platform} tp{ability.tensor_parallel_size}: "
    blockers = [line.name for line in found.lines if ability in line.blocks]
    if blockers:
        return Text.assemble(name, ("cannot run", "yellow"), f" because of {', '.join(blockers)}")
    if not found.replay:
        return Text.assemble(name, ("can run, without replay", "yellow"))
    return Text.assemble(name, ("can run", "green"))
