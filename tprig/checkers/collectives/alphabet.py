"""Signatures of collectives as small numbers, the same on every rank, so that streams compare."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import numpy as np
import numpy.typing as npt

from tprig.evidence import Operation

Ints = npt.NDArray[np.int32]

STEP = -1
"""Stands in a sequence where a model step begins."""
UNTOLD = 0
"""Stands for a call whose operation the stream never told."""

_PEER_KINDS = ("send", "recv")


class Alphabet:
    """Numbers signatures; what may differ between ranks (ids, streams) is no part of them."""

    def __init__(self) -> None:
        self.operations: list[Operation | None] = [None]
        self._numbers: dict[Hashable, int] = {}
        self._features: dict[str, dict[Hashable, int]] = {}
        self._columns: dict[str, list[int]] = {name: [0] for name in _FEATURES}

    def __len__(self) -> int:
        return len(self.operations)

    def number(self, operation: Operation) -> int:
        """The number of an operation's signature."""
        signature = _signature(operation)
        found = self._numbers.get(signature)
        if found is None:
            found = self._numbers[signature] = len(self.operations)
            self.operations.append(operation)
            for name in _FEATURES:
                self._columns[name].append(self._feature(name, operation))
        return found

    def _feature(self, name: str, operation: Operation) -> int:
        known = self._features.setdefault(name, {})
        return known.setdefault(_FEATURES[name](operation), len(known) + 1)

    def feature(self, name: str) -> Ints:
        """One number per signature, equal where the feature is; the last is that of `STEP`.

        Args:
            name: `kind`, `group`, `site` or `form`.
        """
        return np.array([*self._columns[name], STEP], dtype=np.int32)

    def where(self, **wanted: object) -> npt.NDArray[np.bool_]:
        """Which signatures have these attributes; never `STEP` or `UNTOLD`. [signatures + 1]."""
        hits = [
            operation is not None
            and all(getattr(operation, name) == value for name, value in wanted.items())
            for operation in self.operations
        ]
        return np.array([*hits, False])

    def shared_by(self, ranks: frozenset[int]) -> npt.NDArray[np.bool_]:
        """Which signatures concern all of these ranks. [signatures + 1]."""
        hits = [op is not None and ranks <= frozenset(op.ranks) for op in self.operations]
        return np.array([*hits, False])

    def groups(self) -> list[frozenset[int]]:
        """The sets of ranks that share a collective, in a fixed order."""
        found = {frozenset(op.ranks) for op in self.operations if op is not None}
        return sorted((ranks for ranks in found if len(ranks) > 1), key=sorted)


def kind_of(operation: Operation) -> str:
    """The kind as both ends of it see it."""
    return "send/recv" if operation.kind in _PEER_KINDS else operation.kind


def _group(operation: Operation) -> Hashable:
    return operation.group, tuple(operation.ranks)


def _site(operation: Operation) -> Hashable:
    return tuple(operation.location)


_FEATURES: Mapping[str, Callable[[Operation], Hashable]] = {
    "kind": kind_of,
    "group": _group,
    "site": _site,
    # What a step issues again in the next one, whatever the size of the batch.
    "form": lambda op: (op.layer, kind_of(op), op.backend, _group(op), _site(op)),
}


def _signature(operation: Operation) -> Hashable:
    return (
        operation.layer,
        kind_of(operation),
        operation.backend,
        _group(operation),
        None if operation.shape is None else tuple(operation.shape),
        operation.dtype,
        operation.root,
        operation.reduction,
        operation.mode,
        _site(operation),
        operation.template,
    )


def told(operation: Operation | None) -> str:
    """An operation in words: `all_reduce of float32[8, 128] in tp:0 (linear.py:forward:120)`."""
    if operation is None:
        return "a call whose operation was never told"
    if operation.layer == "graph":
        return f"a replay of the graph {operation.template}"
    size = "" if operation.shape is None else str(list(operation.shape))
    what = f" of {operation.dtype or 'objects'}{size}"
    with_ = [f"root {operation.root}"] if operation.root is not None else []
    with_ += [operation.reduction] if operation.reduction not in (None, "sum") else []
    by = f" by {operation.backend}" if operation.backend else ""
    more = f", {', '.join(with_)}" if with_ else ""
    at = f" ({operation.location[0]})" if operation.location else ""
    captured = " in a capture" if operation.mode == "capture" else ""
    return f"{operation.kind}{what}{more} in {operation.group}{by}{captured}{at}"
