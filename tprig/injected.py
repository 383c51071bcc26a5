"""What the inject folder offers, as it says itself: nobody but an engine's processes imports it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import Literal

import msgspec

from tprig.command import run
from tprig.template import INJECT

DEADLINE_S = 60.0
_ASK = """
import json
from dataclasses import fields
from tprig_inject.faults import FAMILIES, Fault
from tprig_inject.seams import SEAMS
told = [field.name for field in fields(Fault) if field.name != "plant"]
faults = {
    name: {"family": family, **{what: getattr(fault, what) for what in told}}
    for family, members in FAMILIES.items()
    for name, fault in members.items()
}
print(json.dumps({"seams": sorted(SEAMS), "faults": faults}))
"""


class Fault(msgspec.Struct, frozen=True):
    """A bug that can be planted; `tprig_inject.faults.base.Fault` says what the fields mean."""

    family: str
    """What it is a fault of: a name of `tprig_inject.faults.FAMILIES`."""
    process: Literal["worker", "core"]
    resembles: str
    anomaly: str
    judges: tuple[str, ...]
    draft: Literal["greedy", "probabilistic"]
    workload: str
    sizes: tuple[int, ...]
    lethal: bool
    cuda_only: bool
    suite: Literal["faults", "performance", "determinism"]


class Injected(msgspec.Struct, frozen=True):
    """The registries of the inject folder."""

    seams: list[str]
    faults: Mapping[str, Fault]


@cache
def injected() -> Injected:
    """Ask the inject folder, once a process, in an interpreter of its own.

    Raises:
        CommandError: if that interpreter does not answer.
        RuntimeError: if it cannot import the folder.
    """
    # An outer PYTHONPATH might hold another inject folder..
    variables = {**os.environ, "PYTHONPATH": str(INJECT)}
    done = run([sys.executable, "-c", _ASK], deadline_s=DEADLINE_S, variables=variables)
    if done.returncode:
        words = done.stderr.decode(errors="replace")
        raise RuntimeError(f"expected {INJECT} to be importable, found: {words}")
    return msgspec.json.decode(done.stdout, type=Injected)
