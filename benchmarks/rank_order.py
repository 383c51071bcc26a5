"""Judging rank order beside torch's own analyzer, and what recording it costs a worker.

    python benchmarks/rank_order.py [--calls 200000] [--bundle BUNDLE]

Two ranks issue the same sequence of collectives, but for one that the second leaves out near the
end. Each reads its own files from disk and then judges, which is what is compared, in time of the
process: ours the streams of a bundle with its decisions, torch's `flight_recorder` pickled dumps.
Then steps of a worker that computes nothing (`idle_worker.py`) are timed with its recorders in
place and without. Prints a line per figure and a summary last; exits 1 when torch's analyzer is
not at least 20 times slower, or when recording takes more than 1% of a GPU step of 10 ms. With a
bundle, also what recording is of the step of a CPU engine.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tprig" / "inject"))

import torch
from tprig_inject.recorders.stages import tensor_digest
from tprig_inject.stream import RankStream

from fixtures.cases import SPECULATIVE_TOKENS, formula
from fixtures.checkpoints.mtp import MtpRecipe
from tests.tprig.inject.foreign import idle_worker
from tprig import evidence
from tprig.bundle import load
from tprig.bundle.records import read_stream
from tprig.checkers.collectives import check_rank_order
from tprig.history import RunHistory

SPEEDUP_LEAST = 20.0
SHARE_MOST = 0.01
GPU_STEP_NS = 10e6
SHAPES = (8, 16, 24)
"""Batch sizes in turn: steps are not all alike."""
IN_STEP = 18
DECISIONS = 4
REQUESTS = 8
TURNS, ROUNDS, CALLS = 5, 50, 10

CLAIM = evidence.Claim(
    id="rank-order", test="", checker="rank_order", anomalies=[], runs={"on": "r"},
    tensor_parallel_size=2,
)  # fmt: skip


def sequence(calls: int, left_out: int | None) -> Iterator[tuple[int, str, list[int]]]:
    """(place in the step, kind, shape) of each call; one is left out."""
    for number in range(calls):
        step, place = divmod(number, IN_STEP)
        if number != left_out:
            tokens = SHAPES[step % len(SHAPES)]
            kind = "all_gather" if place % 6 == 5 else "all_reduce"
            yield place, kind, [tokens, 4096]


# --- ours ---------------------------------------------------------------------------------------


def write_stream(path: Path, calls: int, left_out: int | None) -> None:
    """A rank's stream as the recorder writes it: a chunk of calls between two decisions."""
    told: dict[tuple[int, str, int], int] = {}
    lines: list[bytes] = []
    chunk: list[int] = []
    entered = [0]

    def add(record: dict[str, Any]) -> None:
        lines.append(msgspec.json.encode(record))

    def spill() -> None:
        if chunk:
            times = list(range(entered[0] * 10, (entered[0] + len(chunk)) * 10, 10))
            add({"type": "calls", "first": entered[0], "operations": chunk,
                 "enter_ns": times, "leave_ns": [t + 5 for t in times]})  # fmt: skip
            entered[0] += len(chunk)
            chunk.clear()

    add({"type": "header", "version": evidence.SCHEMA_VERSION, "stream": "rank", "subject": "r"})
    step = -1
    for place, kind, shape in sequence(calls, left_out):
        if place == 0:
            step += 1
            spill()
            add({"type": "decision", "step": step, "at": entered[0], "kind": "schedule",
                 "facts": {"tokens": {"a": shape[0]}}})  # fmt: skip
        key = (place, kind, shape[0])
        if key not in told:
            told[key] = len(told)
            add({"type": "operation", "id": told[key], "layer": "semantic", "kind": kind,
                 "backend": None, "group": "tp:0", "ranks": [0, 1], "shape": shape,
                 "dtype": "bfloat16", "location": [f"model.py:forward:{place}"]})  # fmt: skip
        chunk.append(told[key])
    spill()
    add({"type": "end", "records": len(lines) - 1})
    path.write_bytes(b"\n".join(lines) + b"\n")


def read(folder: Path) -> RunHistory:
    """Two streams from disk."""
    streams = {}
    for rank in (0, 1):
        with (folder / f"rank{rank}.jsonl").open("rb") as handle:
            streams[rank] = read_stream(handle, f"rank{rank}.jsonl", "rank", "r")
    return RunHistory(id="r", ranks=streams)


def judge(folder: Path) -> tuple[list[evidence.Finding], float, float]:
    """Findings, and seconds of this process's time for reading and for judging."""
    # As the loader of bundles does, and torch's analyzer.
    gc.disable()
    begin_s = time.process_time()
    history = read(folder)
    read_s = time.process_time()
    findings = check_rank_order(CLAIM, {"on": history}).findings
    gc.enable()
    return findings, read_s - begin_s, time.process_time() - read_s


# --- torch's ------------------------------------------------------------------------------------


def write_dump(path: Path, calls: int, left_out: int | None) -> None:
    """What torch's flight recorder would have dumped of the same calls."""
    entries = []
    for number, (place, kind, shape) in enumerate(sequence(calls, left_out)):
        gathered = [shape[0] * (2 if kind == "all_gather" else 1), shape[1]]
        entries.append(
            {
                "record_id": number, "pg_id": 0, "process_group": ("0", "tp"),
                "collective_seq_id": number + 1, "p2p_seq_id": 0, "op_id": number + 1,
                "profiling_name": f"nccl:{kind}", "time_created_ns": number * 10,
                "input_sizes": [shape], "output_sizes": [gathered], "input_dtypes": ["BFloat16"],
                "output_dtypes": ["BFloat16"], "state": "completed",
                "time_discovered_started_ns": number * 10,
                "time_discovered_completed_ns": number * 10 + 5, "retired": True,
                "timeout_ms": 600000, "is_p2p": False,
                "frames": [{"name": "forward", "filename": "model.py", "line": place}],
            }
        )  # fmt: skip
    config = {"0": {"name": "0", "desc": "tp", "ranks": "[0, 1]"}}
    path.write_bytes(pickle.dumps({"version": "2.10", "pg_config": config, "entries": entries}))


ANALYSE = """
import sys, time, contextlib, io
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir
args = JobConfig().parse_args([sys.argv[1], "--prefix", "rank_"])
begin = time.process_time()
with contextlib.redirect_stdout(io.StringIO()):
    details, version = read_dir(args)
    read = time.process_time()
    build_db(details, args, version)
print(read - begin, time.process_time() - read)
"""


def analyse(folder: Path) -> tuple[float, float]:
    """Seconds of its process's time that torch's analyzer takes to read and to judge."""
    command = [sys.executable, "-c", ANALYSE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"torch's analyzer ended with {done.returncode}:\n{done.stderr[-2000:]}")
    read_s, judge_s = map(float, done.stdout.split()[-2:])
    return read_s, judge_s


# --- recording ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What recording costs a worker, in nanoseconds of its thread's time."""

    wire: str
    collective_ns: float
    """On both layers, with its share of writing calls into the stream once a step."""
    decision_ns: float
    """One of the four of a step, with how its facts are gathered."""

    @property
    def step_ns(self) -> float:
        """Of a whole step."""
        return IN_STEP * self.collective_ns + DECISIONS * self.decision_ns


def shortest_ns(work: Callable[[], object], calls: int = CALLS, rounds_of: int = ROUNDS) -> float:
    """The shortest of many short rounds: whatever else the machine does only adds."""
    rounds = []
    for _ in range(rounds_of):
        begin_ns = time.thread_time_ns()
        for _ in range(calls):
            work()
        rounds.append((time.thread_time_ns() - begin_ns) / calls)
    return min(rounds)


def recording(folder: Path) -> list[Cost]:
    """What recording costs over the wire of a CPU and over that of a GPU."""
    return [
        _recording(folder, "shared memory", idle_worker.CpuCommunicator),
        _recording(folder, "PyNccl", idle_worker.NcclCommunicator),
    ]


def _recording(folder: Path, wire: str, communicator: type[Any]) -> Cost:
    """A step with nothing recorded, with collectives, and with decisions besides."""
    runner = idle_worker.ModelRunner(
        communicator, MtpRecipe().num_layers, SPECULATIVE_TOKENS, REQUESTS
    )
    recorders: tuple[list[str], ...] = ([], ["collectives"], ["collectives", "decisions"])
    # In turns: a machine that is slower for a while is so for all.
    bare_ns, called_ns, whole_ns = (
        min(times)
        for times in zip(
            *(
                [_step_ns(folder / f"{wire}-{turn}-{len(names)}.jsonl", runner, names)
                 for names in recorders]
                for turn in range(TURNS)
            ),
            strict=True,
        )
    )  # fmt: skip
    return Cost(wire, (called_ns - bare_ns) / IN_STEP, (whole_ns - called_ns) / DECISIONS)


def _step_ns(path: Path, runner: idle_worker.ModelRunner, recorders: list[str]) -> float:
    stream = RankStream(path, "cost")
    session = idle_worker.session()
    session.begin(write=stream.write, recorders=recorders, faults=[], model_runner=runner)
    step_ns = shortest_ns(runner.step)
    session.end()
    stream.close()
    _demand_recorded(path, recorders)
    return step_ns


def _demand_recorded(path: Path, recorders: list[str]) -> None:
    """What was timed must have been recorded: every call of every step on both layers."""
    steps = ROUNDS * CALLS
    records = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    calls = sum(len(r["operations"]) for r in records if r["type"] == "calls")
    settled = sum(r["type"] == "decision" for r in records)
    assert calls == (2 * IN_STEP * steps if "collectives" in recorders else 0), calls
    assert settled == (DECISIONS * steps if "decisions" in recorders else 0), settled


def digest_ms() -> float:
    """Milliseconds of the digest of one MiB, which the values that are compared take besides."""
    logits = torch.zeros(1 << 18)
    return shortest_ns(lambda: tensor_digest(logits), calls=1, rounds_of=10) / 1e6


def cpu_step_ns(bundle: Path) -> float | None:
    """The median step of the bundle's runs at TP2; None without any."""
    steps = [
        record.end_ns - record.start_ns
        for run in load(bundle).runs.values()
        if run.steps is not None and len(run.ranks) > 1
        for record in run.steps.records
        if isinstance(record, evidence.Step)
    ]
    return float(np.median(steps)) if steps else None


def main() -> int:
    """Measure, print, and hold the bounds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=200_000)
    parser.add_argument("--bundle", type=Path)
    options = parser.parse_args()
    one = formula(MtpRecipe().num_layers)
    forward = one["all_reduces_forward"] + one["gathers_forward"]
    drafted = one["all_reduces_draft"] + one["gathers_draft"]
    assert forward + SPECULATIVE_TOKENS * drafted == IN_STEP
    left_out = (options.calls - options.calls // 10) // IN_STEP * IN_STEP + IN_STEP // 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dumps = folder / "dumps"
        dumps.mkdir()
        for rank, lacking in ((0, None), (1, left_out)):
            write_stream(folder / f"rank{rank}.jsonl", options.calls, lacking)
            write_dump(dumps / f"rank_{rank}", options.calls, lacking)
        return report(options, folder, dumps, left_out)


def report(options: argparse.Namespace, folder: Path, dumps: Path, left_out: int) -> int:
    """Print the figures; 1 when a bound is missed."""
    findings, read_s, ours_s = min((judge(folder) for _ in range(3)), key=lambda run: run[2])
    (finding,) = findings
    found = (finding.anomaly, finding.where.rank, finding.where.step)
    assert found == ("collective.missing", 1, left_out // IN_STEP), found
    tracemalloc.start()
    judge(folder)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    their_read_s, theirs_s = min((analyse(dumps) for _ in range(2)), key=lambda run: run[1])
    speedup, records = theirs_s / ours_s, 2 * options.calls
    print(
        f"ours:    {ours_s:.3f} s, {records / ours_s:,.0f} calls/s, after reading for "
        f"{read_s:.3f} s; peak {peak_bytes >> 20} MiB"
    )
    print(
        f"torch's: {theirs_s:.3f} s, {records / theirs_s:,.0f} calls/s, after reading for "
        f"{their_read_s:.3f} s"
    )
    costs = recording(folder)
    print(f"a step: {IN_STEP} collectives, {DECISIONS} decisions on {REQUESTS} requests")
    for cost in costs:
        print(
            f"over {cost.wire}: a collective on both layers {cost.collective_ns:.0f} ns, "
            f"a decision {cost.decision_ns:.0f} ns, a step {cost.step_ns / 1000:.1f} us"
        )
    step_ns = max(cost.step_ns for cost in costs)
    share = step_ns / GPU_STEP_NS
    print(f"digests of values, where they are asked for: {digest_ms():.2f} ms per MiB")
    if options.bundle is not None and (cpu_ns := cpu_step_ns(options.bundle)) is not None:
        print(f"of a CPU engine's step of {cpu_ns / 1e6:.1f} ms: {step_ns / cpu_ns:.3%}")
    held = speedup >= SPEEDUP_LEAST and share <= SHARE_MOST
    print(
        f"rank order: {speedup:.1f}x as fast as torch's analyzer (at least {SPEEDUP_LEAST:g}x), "
        f"recording {share:.2%} of a 10 ms step (at most {SHARE_MOST:.0%}): "
        f"{'held' if held else 'MISSED'}"
    )
    return 0 if held else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
