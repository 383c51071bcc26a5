"""The first place where the ranks of a group part, who parted there, and what it is called.

No rank is assumed to be right. The ranks vote on the call at the place where they part; where they
are of two minds, what all of them did earlier in the same circumstances decides; where nothing
like it came before, both sides are told and none is blamed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from tprig.checkers.collectives.align import WINDOW, Edit, align, common_prefix
from tprig.checkers.collectives.alphabet import STEP, Alphabet, Ints, kind_of
from tprig.checkers.collectives.track import Sequence
from tprig.evidence import Operation

CONTEXTS = (16, 8, 4, 2)
"""Calls that must agree for an earlier place to be a precedent: the more the better."""
SAME_PLACE = 16
"""Differences with no more equal calls than this between them are of one piece."""


@dataclass(frozen=True)
class Divergence:
    """Where one rank's sequence parts from another's."""

    anomaly: str
    expected: Sequence
    found: Sequence
    places: tuple[int, int]
    """Where it lies in either sequence."""
    call: Operation | None
    """What one issued there; None where that is the beginning of a step."""
    other: Operation | None
    """What the other issued in its place, if that is what differs."""
    by: str
    """Why `expected` is taken to be right; empty when nothing says so."""
    further: int
    """Differences that follow."""


def divergences(sequences: Many[Sequence], alphabet: Alphabet, *, ended: bool) -> list[Divergence]:
    """How each rank of a group parts from those that are taken to be right.

    Args:
        sequences: of the ranks of a group, what they issued in it.
        alphabet: what the numbers stand for.
        ended: False when a sequence may go on beyond what is known.
    """
    place = _parting(sequences, ended=ended)
    if place is None:
        return []
    right, by = _elect(sequences, place, alphabet, ended=ended)
    parted = [
        _against(right, by, other, alphabet, ended=ended)
        for other in sequences
        if other is not right
    ]
    return [divergence for divergence in parted if divergence is not None]


def _parting(sequences: Many[Sequence], *, ended: bool) -> int | None:
    """The first place at which not all ranks issued the same; None when there is none."""
    first, *others = sequences
    places = []
    for other in others:
        same = common_prefix(first.signatures, other.signatures)
        lengths = len(first), len(other)
        if same < min(lengths) or (ended and lengths[0] != lengths[1]):
            places.append(same)
    return min(places, default=None)


# --- who is right -------------------------------------------------------------------------------


def _elect(
    sequences: Many[Sequence], place: int, alphabet: Alphabet, *, ended: bool
) -> tuple[Sequence, str]:
    """A rank whose call at the place where they part is the right one, and why."""
    votes = Counter(_call_at(s, place) for s in sequences if ended or place < len(s))
    (winner, most), *rest = votes.most_common()
    if not rest or most > rest[0][1]:
        right = next(s for s in sequences if _call_at(s, place) == winner)
        did = "issued it" if winner is not None else "ended here"
        return right, f"{most} of {len(sequences)} ranks {did}"
    usual = _precedent(sequences[0].signatures[:place], set(votes) - {None}, alphabet)
    for candidate in sequences:
        call = _call_at(candidate, place)
        if usual is not None and call is not None and _forms(alphabet)[call] == usual:
            return candidate, "all ranks issued it in the same place before"
    longest = max(sequences, key=len)
    return (sequences[0] if len(votes) > 1 and None not in votes else longest), ""


def _call_at(sequence: Sequence, place: int) -> int | None:
    return int(sequence.signatures[place]) if place < len(sequence) else None


def _forms(alphabet: Alphabet) -> Ints:
    return alphabet.feature("form")


def _precedent(prefix: Ints, calls: set[int | None], alphabet: Alphabet) -> int | None:
    """The form of the call that followed the last time the same calls came before.

    Args:
        prefix: what all ranks issued before they parted. [calls]
        calls: what they issued where they parted.
        alphabet: what the numbers stand for.

    Returns:
        None when the same never came before, or when the calls are all of that form.
    """
    feature = _forms(alphabet)
    wanted = {int(feature[call]) for call in calls if call is not None}
    forms = feature[prefix[-8 * WINDOW :]]
    for length in CONTEXTS:
        usual = _followed(forms, length)
        if usual in wanted and len(wanted) == len(calls):
            return usual
    return None


def _followed(forms: Ints, length: int) -> int | None:
    """What followed the last time that the last `length` forms came before."""
    if len(forms) <= length:
        return None
    context = forms[-length:]
    windows = np.lib.stride_tricks.sliding_window_view(forms[:-1], length)
    met = np.flatnonzero((windows == context).all(axis=1))
    return int(forms[met[-1] + length]) if len(met) else None


# --- what it is ---------------------------------------------------------------------------------


def _against(
    right: Sequence, by: str, other: Sequence, alphabet: Alphabet, *, ended: bool
) -> Divergence | None:
    waits = bool(by) and not ended
    expected = _continued(right, other, alphabet) if waits else right.signatures
    found = align(expected, other.signatures, alphabet, ended=ended)
    if found.first is None:
        return None
    piece = _piece(found.edits)
    anomaly, edit = _name(piece, expected, other.signatures, alphabet, decided=bool(by))
    call = None if edit.a is None else alphabet.operations[expected[edit.a]]
    instead = None if edit.b is None else alphabet.operations[other.signatures[edit.b]]
    if call is None and instead is not None and edit.a is None:
        call, instead = instead, None
    if anomaly == "collective.missing" and edit.b is None and call is not None:
        instead = _strayed(call, other, edit.before[1], alphabet)
        anomaly = anomaly if instead is None else "collective.group"
    # Where nobody is known to be right, the one that has less is told to lack it.
    swapped = anomaly == "collective.missing" and edit.a is None
    return Divergence(
        anomaly=anomaly,
        expected=other if swapped else right,
        found=right if swapped else other,
        places=edit.before[::-1] if swapped else edit.before,
        call=call,
        other=instead,
        by=by,
        further=len(found.edits) - len(piece) if found.whole else len(found.edits),
    )


def _strayed(call: Operation, other: Sequence, place: int, alphabet: Alphabet) -> Operation | None:
    """The call that a rank issued here among other ranks than those whose sequences these are."""
    begin = other.call(place - 1) if place else 0
    end = other.call(place)
    for signature in other.track.signatures[begin:end]:
        stray: Operation | None = alphabet.operations[signature]
        if stray is not None and stray.layer == call.layer and _alike_but_for_group(call, stray):
            return stray
    return None


def _continued(right: Sequence, other: Sequence, alphabet: Alphabet) -> Ints:
    """What the right one issued and, where it stopped, what followed the last time.

    A rank that waits for another issues nothing more; only what it would have gone on with shows
    whether the other one left something out or put something in.
    """
    ours = right.signatures
    more = max(len(other) - len(ours), 0) + max(CONTEXTS)
    forms = _forms(alphabet)[ours[-8 * WINDOW :]]
    for length in CONTEXTS:
        if len(forms) <= length:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(forms[:-1], length)
        met = np.flatnonzero((windows == forms[-length:]).all(axis=1))
        if len(met):
            start = len(ours) - len(forms) + int(met[-1]) + length
            return np.concatenate([ours, ours[start : start + more]])
    return ours


def _piece(edits: Many[Edit]) -> list[Edit]:
    """The first differences, as far as they lie close together."""
    piece = [edits[0]]
    for edit in edits[1:]:
        near = (edit.before[i] - piece[-1].before[i] for i in (0, 1))
        if max(near) > SAME_PLACE:
            break
        piece.append(edit)
    return piece


def _name(
    piece: Many[Edit], expected: Ints, found: Ints, alphabet: Alphabet, *, decided: bool
) -> tuple[str, Edit]:
    """What the first difference is called, and the edit that shows it."""
    dropped = [int(expected[e.a]) for e in piece if e.a is not None and e.b is None]
    taken = [int(found[e.b]) for e in piece if e.b is not None and e.a is None]
    edit = piece[0]
    moved = Counter(dropped) & Counter(taken)
    first = int(expected[edit.a]) if edit.a is not None else int(found[edit.b or 0])
    if first in moved and (edit.a is None or edit.b is None):
        return _order(first, piece, expected, found, alphabet), edit
    if edit.a is not None and edit.b is not None:
        return _differing(int(expected[edit.a]), int(found[edit.b]), alphabet), edit
    elsewhere = _other_group(piece, expected, found, alphabet)
    if elsewhere is not None:
        return "collective.group", elsewhere
    return ("collective.missing" if edit.b is None or not decided else "collective.extra"), edit


def _order(moved: int, piece: Many[Edit], expected: Ints, found: Ints, alphabet: Alphabet) -> str:
    """Whether a call changed places with one of its own group or of another one."""
    groups = alphabet.feature("group")
    begin = piece[0].before
    end = [e.before[i] + (e.a is not None, e.b is not None)[i] for e in piece[-1:] for i in (0, 1)]
    ours, theirs = expected[begin[0] : end[0]], found[begin[1] : end[1]]
    group = groups[moved]
    same = np.array_equal(ours[groups[ours] == group], theirs[groups[theirs] == group])
    return "collective.cross-group-order" if same else "collective.order"


def _other_group(piece: Many[Edit], expected: Ints, found: Ints, alphabet: Alphabet) -> Edit | None:
    """The first call that is missing here and was issued in another group close by."""
    taken = [e for e in piece if e.b is not None and e.a is None]
    for edit in piece:
        call = alphabet.operations[expected[edit.a]] if edit.a is not None else None
        for other in taken if call is not None and edit.b is None else ():
            instead = alphabet.operations[found[other.b or 0]]
            if instead is not None and call is not None and _alike_but_for_group(call, instead):
                return Edit(edit.a, other.b, edit.before)
    return None


def _alike_but_for_group(call: Operation, other: Operation) -> bool:
    return (call.kind, call.shape, call.dtype) == (other.kind, other.shape, other.dtype) and (
        (call.group, call.ranks) != (other.group, other.ranks)
    )


_DIFFERENCES = (
    ("collective.group", lambda op: (op.group, op.ranks)),
    ("collective.type", kind_of),
    ("collective.root", lambda op: op.root),
    ("collective.reduction", lambda op: op.reduction),
    ("collective.dtype", lambda op: op.dtype),
    ("collective.size", lambda op: op.shape),
    ("graph.replay-vs-eager", lambda op: op.mode),
    ("collective.backend", lambda op: op.backend),
)
"""What two calls in the same place may differ in, the gravest first."""


def _differing(a: int, b: int, alphabet: Alphabet) -> str:
    """What a call in the place of another is called."""
    call, other = alphabet.operations[a], alphabet.operations[b]
    if STEP in (a, b) or call is None or other is None:
        return "collective.order"
    if "graph" in (call.layer, other.layer):
        return "graph.template" if call.layer == other.layer else "graph.replay-vs-eager"
    if kind_of(call) != kind_of(other) and call.group == other.group:
        return "collective.type"
    for anomaly, attribute in _DIFFERENCES:
        if attribute(call) != attribute(other):
            return anomaly
    return "collective.order"
