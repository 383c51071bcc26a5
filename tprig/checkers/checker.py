"""What a checker is: a pure function from the histories of runs to a judgement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tprig.evidence import Claim, Finding
from tprig.history import RunHistory

Runs = Mapping[str, RunHistory]
"""Role (`on`, `off`, `tp1`, ...) -> history. A role whose run was never recorded is absent."""

Need = Literal["run", "workload", "outputs", "steps", "ranks", "events"]
"""A document or stream of a run or of its engine; `run` also means that the run is complete."""


@dataclass
class Judgement:
    """What a checker found in the evidence that is there."""

    measured: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    """Only what is certain: evidence that is missing can not take it back."""
    notes: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    """What could not be judged for want of evidence; any makes the claim `unknown`."""
    compared: list[Finding] = field(default_factory=list)
    """Those of the findings that rest on holding two engines against each other."""
    withdrawn: str | None = None
    """Why the claim can not be decided by any evidence of its kind."""


@dataclass(frozen=True)
class Checker:
    """A named way to judge a claim."""

    name: str
    roles: tuple[str, ...]
    """The roles that a claim must cast; empty when any will do."""
    needs: tuple[Need, ...]
    """What must be there, whole, of each run for the claim to be decided."""
    seams: tuple[str, ...]
    """Seams (and recorders) that the evidence rests on, by the name of their `Seam` records."""
    function: Callable[[Claim, Runs], Judgement]
    """Must bear with whatever is missing, and find what is certain without it."""
