"""Runs of ranks that recorded their collectives, whole, cut short or hung."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tests.fakes import histories
from tests.fakes.ranks import Rank
from tprig import evidence
from tprig.history import RunHistory, Stream


def history(
    made: Iterable[Rank],
    *,
    name: str = "on",
    complete: bool = True,
    dropped: int = 0,
    forensics: Sequence[evidence.ForensicRecord] | None = None,
    core: Sequence[evidence.CoreRecord] | None = None,
) -> RunHistory:
    """The run that these ranks recorded.

    Args:
        made: one for each rank of the run.
        name: its id.
        complete: False for streams that were cut short.
        dropped: records that each writer dropped.
        forensics: what the client read in shared memory, of a run that hung.
        core: what the engine core sent.
    """
    made = list(made)
    for rank in made:
        rank.flush()
    streams = {
        rank.rank: Stream[evidence.RankRecord](
            path=f"runs/{name}/ranks/rank{rank.rank}.jsonl",
            records=tuple(rank.records),
            complete=complete,
            dropped=dropped,
        )
        for rank in made
    }
    return RunHistory(
        id=name,
        run=evidence.Run(
            id=name,
            engine=f"engine-{name}",
            test="suites/test_rank_order.py::test_rank_order[base]",
            recorders=["collectives", "decisions"],
            faults=[],
            started="2026-12-01T08:00:10.000000Z",
            elapsed_s=0.1,
            complete=complete,
            rank_streams=len(made),
        ),
        ranks=streams,
        core=None if core is None else histories.stream(f"runs/{name}/core.jsonl", core),
        forensics=None
        if forensics is None
        else histories.stream(f"runs/{name}/forensics.jsonl", forensics),
        engine=histories.engine(f"engine-{name}", tp=len(made)),
    )


def hung(made: Sequence[Rank], states: Mapping[int, str] | None = None) -> RunHistory:
    """The run of ranks of which nothing moved any more, with what their shared memory held."""
    states = states or {}
    looks = [
        rank.progress(states.get(rank.rank, "running"), at_ns) for at_ns in (1, 2) for rank in made
    ]
    return history(made, complete=False, forensics=[*looks, *(rank.ring() for rank in made)])


def claim(**fields: object) -> evidence.Claim:
    """That ranks keep their order, in the run `on`."""
    given = {
        "id": "tp2-base/rank-order",
        "test": "suites/test_rank_order.py::test_rank_order[base]",
        "checker": "rank_order",
        "anomalies": [],
        "runs": {"on": "on"},
        "tensor_parallel_size": 2,
        "minima": {"collectives": 1},
    }
    return msgspec.convert(given | fields, evidence.Claim)
