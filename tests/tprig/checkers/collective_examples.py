"""For each anomaly of collectives a literal history that shows it, and no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Unpack

from tests.fakes.collectives import history, hung
from tests.fakes.ranks import Fields, Rank, ranks
from tprig.history import RunHistory

FIRST, SECOND, THIRD = "layer0.py:forward:1", "layer1.py:forward:1", "logits.py:gather:9"


def usual(rank: Rank, *, tokens: int = 3, digest: str = "d0", **second: Unpack[Fields]) -> None:
    """A step with a captured graph, decisions, values and four collectives."""
    begun(rank)
    rank.call(at=SECOND, **second)
    rest(rank, tokens=tokens, digest=digest)


def begun(rank: Rank) -> None:
    rank.step().decide("batch", graph=None, tokens=4).call(at=FIRST)


def rest(rank: Rank, *, tokens: int = 3, digest: str = "d0") -> None:
    rank.call("all_gather", at=THIRD).call("reduce", root=0, at="stats.py:reduce:3")
    rank.value("gathered_logits", digest)
    rank.decide("acceptance", sampled={"a": 2}).decide("draft", run=True, tokens=tokens)


def clean(rank: Rank) -> None:
    """Two steps without a fault, after a capture."""
    rank.template("graph 0", "t0", (4, 8), (4, 8))
    usual(rank)
    usual(rank)


def one_differs(
    change: Callable[[Rank], object], other: Callable[[Rank], object] = usual
) -> RunHistory:
    """A run in whose third step rank 1 does something else."""

    def play(rank: Rank) -> None:
        clean(rank)
        (change if rank.rank == 1 else other)(rank)
        usual(rank)

    return history(ranks(2, play))


def _second(**fields: Unpack[Fields]) -> RunHistory:
    return one_differs(lambda rank: usual(rank, **fields))


def _missing(rank: Rank) -> None:
    begun(rank)
    rest(rank)


def _extra(rank: Rank) -> None:
    begun(rank)
    rank.call(at="debug.py:check:4")
    rank.call(at=SECOND)
    rest(rank)


def _swapped(rank: Rank, **second: Unpack[Fields]) -> None:
    rank.step().decide("batch", graph=None, tokens=4).call(at=SECOND, **second).call(at=FIRST)
    rest(rank)


def _replayed(rank: Rank) -> None:
    begun(rank)
    rank.replay("t0")
    rest(rank)


def _template(rank: Rank) -> None:
    clean(rank)
    rank.template("graph 1", f"t{rank.rank + 1}", (4, 8), (8 - rank.rank, 8))


def _stopped(rank: Rank) -> None:
    clean(rank)
    if rank.rank == 0:
        rank.step().call(at=FIRST, left=False)


def _frozen(rank: Rank) -> None:
    clean(rank)
    rank.step().call(at=FIRST, left=False)


def _slow() -> RunHistory:
    made = ranks(2, _stopped)
    looks = [rank.progress(entered=5) for rank in made] + [rank.progress(at_ns=9) for rank in made]
    return history(made, complete=False, forensics=[*looks, *(rank.ring() for rank in made)])


VIOLATING: Mapping[str, RunHistory] = {
    "value.divergence": one_differs(lambda rank: usual(rank, digest="d1")),
    "decision.divergence": one_differs(lambda rank: usual(rank, tokens=2)),
    "graph.template": history(ranks(2, _template)),
    "graph.replay-vs-eager": one_differs(_replayed),
    "collective.group": _second(group="dp:0"),
    "collective.type": _second(kind="reduce_scatter"),
    "collective.root": one_differs(
        lambda rank: usual(rank, kind="reduce", root=1),
        lambda rank: usual(rank, kind="reduce", root=0),
    ),
    "collective.reduction": _second(reduction="max"),
    "collective.dtype": _second(dtype="bfloat16"),
    "collective.size": _second(shape=(5, 8)),
    "collective.cross-group-order": one_differs(
        lambda rank: _swapped(rank, group="dp:0"), lambda rank: usual(rank, group="dp:0")
    ),
    "collective.order": one_differs(_swapped),
    "collective.missing": one_differs(_missing),
    "collective.extra": one_differs(_extra),
    "collective.backend": _second(backend="gloo"),
    "rank.stall": hung(ranks(2, _stopped), {1: "stopped"}),
    "rank.slow": _slow(),
    "rank.equal-freeze": hung(ranks(2, _frozen)),
    "record.truncated": history(ranks(2, clean), dropped=1),
}
CLEAN: RunHistory = history(ranks(2, clean))
