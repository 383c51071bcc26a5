"""`tprig compare A B`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from tprig.bundle import Bundle
from tprig.cli.opening import opened
from tprig.cli.terminal import show, write_json
from tprig.compare import Comparison, Difference, compare, explain
from tprig.report.comparison import comparison
from tprig.report.text import one_line

DAMAGED = 3
UNKNOWN = 2


def run(root_a: Path, root_b: Path, *, as_json: bool) -> int:
    """Compare two bundles and return the exit code."""
    a, b = opened(root_a), opened(root_b)
    damaged = a.damaged or b.damaged
    found = compare({}, {}) if damaged else compare(a.runs, b.runs)
    differences = () if damaged else explain(a.runs, b.runs, (a.environment, b.environment))
    code = DAMAGED if damaged else _exit_code(a, b, found)
    if as_json:
        write_json(_document(a, b, code, found, differences))
        return code
    show(*_problems("A", a), *_problems("B", b))
    if not damaged:
        show(comparison(found, differences))
    return code


def _exit_code(a: Bundle, b: Bundle, found: Comparison) -> int:
    # An interrupted run may lack outputs that nothing else tells of.
    whole = a.sealed and b.sealed
    return UNKNOWN if found.exit_code == 0 and not whole else found.exit_code


def _problems(name: str, bundle: Bundle) -> Iterator[RenderableType]:
    for problem in bundle.problems:
        style = "bold red" if problem.kind == "damaged" else "yellow"
        yield Text(one_line(f"bundle {name}: {problem}"), style=style)


def _document(
    a: Bundle, b: Bundle, code: int, found: Comparison, differences: tuple[Difference, ...]
) -> dict[str, object]:
    return {
        "a": one_line(str(a.root)),
        "b": one_line(str(b.root)),
        "exit_code": code,
        "problems": {"a": a.problems, "b": b.problems},
        "runs": found.runs,
        "only_a": found.only_a,
        "only_b": found.only_b,
        "what_else_differs": differences,
    }
