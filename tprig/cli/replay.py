"""`tprig replay BUNDLE`."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.text import Text

from tprig import evidence
from tprig.bundle import Bundle, Writer, load, seal
from tprig.bundle.oracle import REPLAYS, attach
from tprig.checkers.anomalies import family
from tprig.checkers.verdict import exit_code, judge_claim, worst
from tprig.cli.check import first_counter_example
from tprig.cli.opening import opened
from tprig.cli.terminal import show, write_json
from tprig.clock import utc_now
from tprig.history import CallHistory, RunHistory
from tprig.replay import ReplayError, Replays, replay
from tprig.report.summary import summary
from tprig.report.text import one_line

DAMAGED = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What the command was given.

    Attributes:
        root: the bundle.
        calls: beginnings of the ids to replay; empty for all.
        replays: how.
        add: whether the bundle takes the results, and is sealed anew.
        as_json: what is printed.
    """

    root: Path
    calls: Sequence[str]
    replays: Replays
    add: bool
    as_json: bool


def run(request: Request) -> int:
    """Replay a bundle's captured calls, judge what came back, and return the exit code."""
    bundle = opened(request.root)
    if bundle.damaged:
        for problem in bundle.problems:
            print(one_line(str(problem)), file=sys.stderr)
        return DAMAGED
    calls = chosen(bundle.calls, request.calls)
    name = utc_now().replace(":", "").replace(".", "-")
    with tempfile.TemporaryDirectory(prefix="tprig-replay-") as folder:
        writer = Writer(Path(folder) / "results")
        replay(calls, request.root, writer, request.replays, name, _say, each=_say)
        results = load(writer.root)
        runs = _attached(bundle, results, calls)
        verdicts = [judge_claim(_claim(run), {run.id: run}) for run in runs]
        if request.add:
            source = writer.root / REPLAYS / name
            shutil.copytree(source, request.root / REPLAYS / name)
            seal(request.root)
    code = exit_code(worst(verdicts))
    if request.as_json:
        write_json({"bundle": one_line(str(request.root)), "exit_code": code, "verdicts": verdicts})
    else:
        show(summary(verdicts), *first_counter_example(verdicts), Text(_conclusion(verdicts)))
    return code


def chosen(calls: Mapping[str, CallHistory], wanted: Sequence[str]) -> dict[str, CallHistory]:
    """The calls whose ids begin so; all when nothing is wanted.

    Raises:
        ReplayError: for a beginning that is not that of exactly one.
    """
    if not wanted:
        return dict(calls)
    for prefix in wanted:
        found = [name for name in calls if name.startswith(prefix)]
        if len(found) != 1:
            known = ", ".join(sorted(calls)) or "none"
            raise ReplayError(
                f"expected the beginning of one captured call's id, found {prefix!r}, which "
                f"begins {len(found)}; the bundle holds {known}"
            )
    return {n: c for n, c in calls.items() if any(n.startswith(p) for p in wanted)}


def _say(text: str) -> None:
    print(one_line(text), file=sys.stderr, flush=True)


def _attached(
    bundle: Bundle, results: Bundle, calls: Mapping[str, CallHistory]
) -> Iterator[RunHistory]:
    """The runs that captured any of the calls, with what was stored and what came back now."""
    for run in bundle.runs.values():
        if not run.calls.keys() & calls.keys():
            continue
        replays = (*bundle.replays, *results.replays)
        whole = attach(run, run.calls, replays)
        yield _only(whole, calls)


def _only(run: RunHistory, calls: Mapping[str, CallHistory]) -> RunHistory:
    """The run as if it had captured no other calls."""
    return dataclasses.replace(
        run,
        calls={name: call for name, call in run.calls.items() if name in calls},
        ranks={
            rank: dataclasses.replace(
                stream,
                records=tuple(r for r in stream.records if _is_about(r, calls)),
            )
            for rank, stream in run.ranks.items()
        },
    )


def _is_about(record: evidence.RankRecord, calls: Mapping[str, CallHistory]) -> bool:
    other = isinstance(record, evidence.OracleCall) and record.call not in calls
    return not other


def _claim(run: RunHistory) -> evidence.Claim:
    return evidence.Claim(
        id=f"{run.id}/replay",
        test="tprig replay",
        checker="oracle",
        anomalies=family("oracle"),
        runs={"run": run.id},
        tensor_parallel_size=len(run.ranks),
        minima={"calls": 1, "repetitions": 1},
    )


def _conclusion(verdicts: Sequence[evidence.Verdict]) -> str:
    exact = sum(v.measured.get("exact", 0) for v in verdicts)
    calls = sum(v.measured.get("calls", 0) for v in verdicts)
    return f"{worst(verdicts)}: {exact} of {calls} captured calls exact in every repetition"
