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
from tprig_inject.faults import FAULTS
from tprig_inject.seams import SEAMS
told = ("process", "resembles", "anomaly", "lethal", "timed")
faults = {name: {what: getattr(fault, what) for what in told} for name, fault in FAULTS.items()}
print(json.dumps({"seams": sorted(SEAMS), "faults": faults}))
"""


class Fault(msgspec.Struct, frozen=True):
    """A bug that can be planted."""

    process: Literal["worker", "core"]
    """Where it is planted: in every worker, or where the scheduler runs."""
    resembles: str
    anomaly: str
    """The anomaly that must be blamed first."""
    lethal: bool
    """True when the engine is lost to it."""
    timed: bool = False
    """True when it alters nothing but how long things take."""


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
