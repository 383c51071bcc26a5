"""Writes `docs/anomalies.md` from the table of anomalies, the planted faults and the examples.

Run `python -m tests.docs.anomalies` in a checkout when a test says that the page is stale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.tprig.checkers.examples import EXAMPLES
from tprig.checkers.anomalies import ANOMALIES, Anomaly
from tprig.checkers.verdict import judge_claim
from tprig.injected import Fault, injected
from tprig.report.text import code, one_line

PAGE = Path(__file__).parents[2] / "docs" / "anomalies.md"
REPLAYED: Mapping[str, str] = {
    "oracle.production": "positions-shifted",
    "oracle.input-mutation": "logits-written",
}
"""Anomaly -> the fault of `tprig_inject.oracle.faults` that shows it, in a replay of real calls."""

HEAD = """# Anomalies

What can be wrong has a name, and the names are in one order of blame: when several show, the first
in this list is the cause to look at. `tprig check` and the table at the end of a run name them.

Each is proven to be seen. Most are proven in a real engine, in which a known bug is planted while
it runs (`pytest -m faults`; `suites/test_faults.py`): the bug must be caught by the anomaly that
names it, and no other may be blamed first. All are shown by a literal history in the tests, beside
a clean one that is as near to it as can be; the examples are those histories' findings.

This page is written by `python -m tests.docs.anomalies`.
"""


def page() -> str:
    """The page as it must be."""
    return "\n".join([HEAD, *map(_section, ANOMALIES.values()), _faults()])


def proofs(anomaly: str) -> dict[str, Fault]:
    """The planted faults that an anomaly must name, by their names."""
    return {name: fault for name, fault in injected().faults.items() if fault.anomaly == anomaly}


def shown_on_cpu(anomaly: str) -> bool:
    """True when a fault shows it in an engine without CUDA."""
    return any(not fault.cuda_only for fault in proofs(anomaly).values())


def _section(anomaly: Anomaly) -> str:
    lines = [
        f"## `{anomaly.name}`\n",
        f"{anomaly.definition}\n",
        f"* Look at: {anomaly.look_at}.",
        f"* Example: {code(_example(anomaly.name))}",
        *(f"* Proven by: {line}" for line in _proven(anomaly.name)),
    ]
    return "\n".join(lines) + "\n"


def _example(name: str) -> str:
    example = EXAMPLES[name]
    runs = {run.id: run for run in example.violating.values()}
    return one_line(judge_claim(example.claim, runs).findings[0].message)


def _proven(name: str) -> Iterator[str]:
    planted = [
        f"the fault `{fault}`{' (CUDA)' if of.cuda_only else ''}"
        for fault, of in proofs(name).items()
    ]
    if name in REPLAYED:
        planted.append(f"the fault `{REPLAYED[name]}`, planted where captured calls are run again")
    yield from planted or ["a literal history alone"]


def _faults() -> str:
    lines = [
        "# Planted faults\n",
        "Those marked CUDA need its streams, collectives or memory. The engine is lost to lethal "
        "ones.\n",
        "| fault | stands for | caught as | |",
        "|---|---|---|---|",
    ]
    for name, fault in injected().faults.items():
        marks = [word for word, holds in _marks(fault) if holds]
        lines.append(f"| `{name}` | {fault.resembles} | `{fault.anomaly}` | {', '.join(marks)} |")
    return "\n".join(lines) + "\n"


def _marks(fault: Fault) -> Iterator[tuple[str, bool]]:
    yield "TP2", fault.sizes == (2,)
    yield "probabilistic drafts", fault.draft == "probabilistic"
    yield "lethal", fault.lethal
    yield "CUDA", fault.cuda_only


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
