"""Whether the record can be trusted: the layers account for one another, and nothing is missing.

The semantic layer and the wire layer are recorded by different hooks, so each checks the other: a
semantic collective without a wire operation below it, or a wire operation that nobody asked for,
shows a hook that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tprig.checkers.collectives.alphabet import Alphabet, told
from tprig.checkers.collectives.track import PENDING, Track
from tprig.checkers.wording import counted
from tprig.evidence import Claim, Decision

Bools = npt.NDArray[np.bool_]
LONGEST_NS = np.iinfo(np.int64).max


def unwatched(track: Track) -> Iterator[str]:
    """Paths that collectives could have taken unseen, by the recorder's own account."""
    if not track.coverage:
        yield f"rank {track.rank}: the recorder never told which paths it watches"
    for _, path in track.coverage:
        if path.needed and not path.hooked:
            yield f"rank {track.rank}: {path.path} is not watched: {path.detail}"


def unaccounted(track: Track, alphabet: Alphabet) -> Iterator[str]:
    """Calls of one layer that the other one does not account for, where both are watched."""
    watched = {path.layer for _, path in track.coverage if path.hooked}
    if track.coverage and "semantic" not in watched:
        return
    layers = _Layers.of(track, alphabet)
    bare = layers.bare()
    if bare.any():
        yield _told(
            track, alphabet, bare, "has no wire operation below it: a hook is missing there"
        )
    stray = layers.stray()
    if stray.any():
        yield _told(track, alphabet, stray, "was asked for by nothing: a hook is missing above it")


def _told(track: Track, alphabet: Alphabet, calls: Bools, what: str) -> str:
    first = int(calls.argmax())
    more = int(calls.sum()) - 1
    rest = f", and {counted(more, 'more call')}" if more else ""
    operation = told(alphabet.operations[track.signatures[first]])
    return f"rank {track.rank}: call {track.first + first}, {operation}, {what}{rest}"


@dataclass(frozen=True)
class _Layers:
    """Which calls are on which layer, and within which; each [calls]."""

    semantic: Bools
    wire: Bools
    parents: npt.NDArray[np.intp]
    """[wire calls]: the last semantic call that was entered before; -1 without one."""
    within: Bools
    """[wire calls]: whether that one had not been left."""
    local: Bools
    """Calls that concern one rank alone, or that no wire operation need carry."""

    @staticmethod
    def of(track: Track, alphabet: Alphabet) -> _Layers:
        semantic = alphabet.where(layer="semantic")[track.signatures]
        wire = alphabet.where(layer="wire")[track.signatures]
        asked, carried = np.flatnonzero(semantic), np.flatnonzero(wire)
        parents = np.searchsorted(asked, carried) - 1
        left = np.where(track.leave_ns == PENDING, LONGEST_NS, track.leave_ns)
        within = np.zeros(len(carried), dtype=bool)
        known = parents >= 0
        within[known] = track.enter_ns[carried[known]] <= left[asked[parents[known]]]
        alone = np.array([op is not None and len(op.ranks) < 2 for op in alphabet.operations] + [0])
        return _Layers(semantic, wire, parents, within, alone.astype(bool)[track.signatures])

    def bare(self) -> Bools:
        """Semantic calls with no wire call below them, [calls]."""
        asked = np.flatnonzero(self.semantic)
        carried = np.zeros(len(asked), dtype=bool)
        carried[self.parents[self.within]] = True
        bare = np.zeros(len(self.semantic), dtype=bool)
        bare[asked[~carried]] = True
        return bare & ~self.local

    def stray(self) -> Bools:
        """Wire calls below no semantic one, [calls]."""
        stray = np.zeros(len(self.wire), dtype=bool)
        stray[np.flatnonzero(self.wire)[~self.within]] = True
        return stray & ~self.local


# --- counts -------------------------------------------------------------------------------------

KINDS = {"all_reduces": "all_reduce", "gathers": "all_gather"}
"""Name in a claim's `exact` -> kind. The logits are gathered by an all-gather."""


def counts(track: Track, alphabet: Alphabet) -> dict[str, int]:
    """How many collectives a rank issued, by layer and by the kinds that a formula speaks of."""
    measured = {}
    for layer, prefix in (("semantic", ""), ("wire", "wire_")):
        total = alphabet.where(layer=layer)[track.signatures]
        measured[f"{prefix}collectives"] = int(total.sum())
        for name, kind in KINDS.items():
            calls = alphabet.where(layer=layer, kind=kind)[track.signatures]
            measured[f"{prefix}{name}"] = int(calls.sum())
    return measured


def off_formula(claim: Claim, track: Track, alphabet: Alphabet) -> Iterator[str]:
    """The first step whose collectives are not as many as the claim's `exact` says, per kind.

    `<kind>_forward` are issued between the schedule of a step with tokens and its drafter,
    `<kind>_draft` by the drafter for each token that it drafts.
    """
    phases = list(_phases(track)) if claim.exact else []
    for name, kind in KINDS.items():
        for layer in ("semantic", "wire"):
            calls = np.flatnonzero(alphabet.where(layer=layer, kind=kind)[track.signatures])
            wrong = _first_wrong(claim.exact, name, phases, calls)
            if wrong is not None:
                yield f"rank {track.rank}: {layer} layer: {wrong}"


@dataclass(frozen=True)
class _Phase:
    step: int
    name: str
    times: int
    begin: int
    end: int


def _phases(track: Track) -> Iterator[_Phase]:
    """What lies between decisions: the forward pass of each step, and its drafter."""
    marks = [d for _, d in track.decisions if d.kind in ("schedule", "draft")]
    ends = [mark.at - track.first for mark in marks[1:]]
    if track.ended and marks:
        ends.append(len(track))
    for mark, end in zip(marks, ends, strict=False):
        name = "forward" if mark.kind == "schedule" else "draft"
        yield _Phase(mark.step, name, _times(mark), max(mark.at - track.first, 0), end)


def _times(mark: Decision) -> int:
    """How often the formula applies: once for a step with tokens, and per drafted token."""
    tokens = mark.facts.get("tokens")
    number = sum(tokens.values()) if isinstance(tokens, dict) else tokens
    if not isinstance(number, int):
        return 0
    return min(number, 1) if mark.kind == "schedule" else number


def _first_wrong(
    exact: Mapping[str, int],
    name: str,
    phases: Sequence[_Phase],
    calls: npt.NDArray[np.intp],
) -> str | None:
    for phase in phases:
        rule = exact.get(f"{name}_{phase.name}")
        if rule is None:
            continue
        low, high = np.searchsorted(calls, [phase.begin, phase.end])
        expected, found = rule * phase.times, int(high - low)
        if found != expected:
            return (
                f"expected {expected} {name.replace('_', '-')} in the {phase.name} phase of step "
                f"{phase.step}, found {found}: a hook is missing, or the model issues others"
            )
    return None
