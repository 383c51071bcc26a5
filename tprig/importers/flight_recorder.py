"""Reads the dumps of torch's flight recorder: pickles, of which only plain values are taken.

A pickle can name any callable and have it called. None is allowed here, not even a harmless one:
a dump holds dicts, lists, strings and numbers, which need none.
"""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from tprig.evidence import Operation
from tprig.importers.imported import ForeignFormatError, ImportedRank

DUMP_BYTES_MOST = 1 << 30
_SUFFIX = re.compile(r"(\d+)(?:\.\w+)?$")
_KINDS = {
    "_all_gather_base": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_reduce_barrier": "barrier",
}
_FRAMES = 4


# What a file that is no pickle of plain values can make of the machine that reads pickles.
_MALFORMED = (
    *(pickle.UnpicklingError, msgspec.ValidationError, EOFError, ValueError, TypeError),
    *(KeyError, IndexError, AttributeError, MemoryError, RecursionError),
)


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Entry(msgspec.Struct):
    record_id: int
    process_group: tuple[str, str]
    profiling_name: str
    state: str
    time_created_ns: int
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    time_discovered_completed_ns: int | None = None
    frames: list[_Frame] = []


class _Group(msgspec.Struct):
    ranks: str
    desc: str = ""


class _Dump(msgspec.Struct):
    entries: list[_Entry]
    pg_config: dict[str, _Group] = {}


class _Unpickler(pickle.Unpickler):
    """Builds plain values; whatever would call something is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ForeignFormatError(f"it names {module}.{name}: expected plain values and no callable")

    def persistent_load(self, pid: object) -> NoReturn:
        raise ForeignFormatError(f"it names the persistent object {pid!r}: expected plain values")


def read(files: Sequence[Path]) -> list[ImportedRank]:
    """The collectives of some ranks.

    Args:
        files: one for each rank; their names end with it, or they are in the order of the ranks.

    Raises:
        ForeignFormatError: if a file is no dump, or would have something called.
        OSError: if one cannot be read.
    """
    numbers = [_number(path) for path in files]
    named = None not in numbers and len(set(numbers)) == len(files)
    ranks = [number if named else place for place, number in enumerate(numbers)]
    made = [_rank(rank or 0, path) for rank, path in zip(ranks, files, strict=True)]
    present = {rank.rank for rank in made}
    for rank in made:
        absent = sorted({r for op in rank.operations for r in op.ranks} - present)
        if absent:
            rank.missing.append(f"the dumps of ranks {absent} are not among the files")
    return sorted(made, key=lambda rank: rank.rank)


def _number(path: Path) -> int | None:
    found = _SUFFIX.search(path.name)
    return None if found is None else int(found[1])


def _rank(rank: int, path: Path) -> ImportedRank:
    dump = _load(path)
    made = ImportedRank(rank, str(path))
    entries = sorted(dump.entries, key=lambda entry: entry.record_id)
    if entries:
        made.first = max(entries[0].record_id, 0)
    for entry in entries:
        made.call(_operation(path, entry, dump.pg_config))
        done = entry.state == "completed"
        # It has ended, though nobody saw when.
        left = entry.time_discovered_completed_ns or entry.time_created_ns
        made.times_ns.append((entry.time_created_ns, left if done else None))
    return made


def _load(path: Path) -> _Dump:
    if path.stat().st_size > DUMP_BYTES_MOST:
        raise ForeignFormatError(f"{path}: is larger than {DUMP_BYTES_MOST} bytes, the limit")
    try:
        with path.open("rb") as file:
            plain = _Unpickler(file).load()
        return msgspec.convert(plain, _Dump)
    except ForeignFormatError as error:
        raise ForeignFormatError(f"{path}: {error}") from None
    except _MALFORMED as error:
        raise ForeignFormatError(
            f"{path}: expected a dump of torch's flight recorder, found what is none: "
            f"{type(error).__name__}: {error}"
        ) from None


def _operation(path: Path, entry: _Entry, groups: Mapping[str, _Group]) -> Operation:
    name, description = entry.process_group
    backend, _, what = entry.profiling_name.partition(":")
    kind, _, peers = what.partition(" ")
    ranks = _ranks(path, groups.get(name))
    sender = None
    if (found := re.fullmatch(r"(\d+)(->|<-)(\d+)", peers)) is not None:
        sender, receiver = (int(found[i]) for i in ((1, 3) if found[2] == "->" else (3, 1)))
        pair = [ranks[place] if place < len(ranks) else place for place in (sender, receiver)]
        sender, ranks = pair[0], sorted(pair)
    return Operation(
        id=0,
        layer="wire",
        kind=_KINDS.get(kind, kind) or "unknown",
        backend=f"torch-{backend}",
        group=description if description not in ("", "undefined") else name,
        ranks=ranks,
        shape=[abs(size) for size in entry.input_sizes[0]] if entry.input_sizes else None,
        dtype=entry.input_dtypes[0] if entry.input_dtypes else None,
        root=sender,
        location=[_told(frame) for frame in entry.frames[:_FRAMES]],
    )


def _ranks(path: Path, group: _Group | None) -> list[int]:
    if group is None:
        return []
    try:
        ranks: Any = ast.literal_eval(group.ranks)
        return msgspec.convert(ranks, list[int])
    except (ValueError, SyntaxError, MemoryError, RecursionError, msgspec.ValidationError):
        raise ForeignFormatError(
            f"{path}: expected the ranks of a group as '[0, 1]', found {group.ranks[:80]!r}"
        ) from None


def _told(frame: _Frame) -> str:
    return f"{Path(frame.filename).name}:{frame.name}:{frame.line}"
