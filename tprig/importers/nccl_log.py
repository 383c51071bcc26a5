"""Reads what NCCL logs of its collectives: NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=INIT,COLL.

A log knows neither times nor whether a call has ended, and names a communicator by its address in
the process. The lines of its initialisation give the id that the ranks share; without them
communicators are told apart by the order of their first use.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tprig.evidence import Operation
from tprig.importers.imported import ForeignFormatError, ImportedRank

_CALL = re.compile(
    r"NCCL INFO (?P<kind>[A-Z]\w+): opCount (?P<count_hex>[0-9a-f]+) .*?\bcount (?P<count>\d+) "
    r"datatype (?P<dtype>\d+) op (?P<reduction>\d+) root (?P<root>-?\d+) comm (?P<comm>\S+) "
    r"\[nranks=(?P<nranks>\d+)\](?: stream (?P<stream>\S+))?"
)
_INIT = re.compile(
    r"comm (?P<comm>0x[0-9a-f]+) rank \d+ n[rR]anks \d+ .*?commId (?P<id>0x[0-9a-f]+)"
)
_KINDS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "Send": "send",
    "Recv": "recv",
    "AlltoAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
}
_DTYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
)
_REDUCTIONS = ("sum", "prod", "max", "min", "avg")
_ROOTED = {"broadcast", "reduce", "gather", "scatter", "send", "recv"}
_REDUCING = {"all_reduce", "reduce_scatter", "reduce"}


def read(files: Sequence[Path]) -> list[ImportedRank]:
    """The collectives of some ranks.

    Args:
        files: one for each rank, in the order of the ranks.

    Raises:
        ForeignFormatError: if a file holds no collective.
        OSError: if one cannot be read.
    """
    logs = [list(_calls(path)) for path in files]
    for path, calls in zip(files, logs, strict=True):
        if not calls:
            raise ForeignFormatError(
                f"{path}: expected lines such as 'NCCL INFO AllReduce: opCount ...', found none; "
                "set NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL"
            )
    members: dict[str, list[int]] = defaultdict(list)
    for rank, calls in enumerate(logs):
        for group in dict.fromkeys(group for group, _ in calls):
            members[group].append(rank)
    return [_rank(rank, files[rank], calls, members) for rank, calls in enumerate(logs)]


def _calls(path: Path) -> Iterator[tuple[str, re.Match[str]]]:
    """(group, line) of each call."""
    ids: dict[str, str] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if (init := _INIT.search(line)) is not None:
                ids[init["comm"]] = f"comm {init['id']}"
            elif (call := _CALL.search(line)) is not None and call["kind"] in _KINDS:
                yield ids.setdefault(call["comm"], f"comm {len(ids)}"), call


def _rank(
    rank: int, path: Path, calls: list[tuple[str, re.Match[str]]], members: dict[str, list[int]]
) -> ImportedRank:
    made = ImportedRank(rank, str(path))
    streams: dict[str, str] = {}
    for group, call in calls:
        ranks, expected = members[group], int(call["nranks"])
        if len(ranks) != expected:
            told = f"{group} has {expected} ranks, {len(ranks)} of which are among the files"
            if told not in made.missing:
                made.missing.append(told)
        stream = streams.setdefault(call["stream"] or "", f"stream {len(streams)}")
        made.call(_operation(group, ranks, rank, stream, call))
    return made


def _operation(
    group: str, ranks: list[int], rank: int, stream: str, call: re.Match[str]
) -> Operation:
    kind = _KINDS[call["kind"]]
    root = int(call["root"])
    # NCCL names the peer of a send or a receive where others have their root.
    peer = ranks[root] if 0 <= root < len(ranks) else root
    return Operation(
        id=0,
        layer="wire",
        kind=kind,
        backend="nccl",
        group=group,
        ranks=sorted({rank, peer}) if kind in ("send", "recv") and peer >= 0 else ranks,
        shape=[int(call["count"])],
        dtype=_named(_DTYPES, int(call["dtype"])),
        root=(rank if kind == "send" else peer) if kind in _ROOTED and peer >= 0 else None,
        reduction=_named(_REDUCTIONS, int(call["reduction"])) if kind in _REDUCING else None,
        stream=stream,
    )


def _named(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else f"nccl {number}"
