"""Loads a bundle: verified, typed, and honest about what is damaged or missing."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, TypeVar

from tprig import evidence
from tprig.bundle import manifest, records
from tprig.bundle.files import MANIFEST, printable
from tprig.bundle.oracle import OracleReader, attach
from tprig.bundle.records import CutError, MalformedError
from tprig.bundle.tree import Tree
from tprig.history import CallHistory, EngineHistory, ReplayHistory, RunHistory, Stream

MAX_RANKS = 1024

_RANK_STREAM = re.compile(r"rank(0|[1-9][0-9]{0,8})\.jsonl")
_T = TypeVar("_T", bound=evidence.Record)


@dataclass(frozen=True)
class Problem:
    """Something of a bundle that cannot be used, and why."""

    kind: Literal["damaged", "missing"]
    """`damaged`: changed, malformed or hostile. `missing`: never written, or not to its end."""
    file: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.file} {self.message}"


@dataclass(frozen=True)
class Bundle:
    """A loaded bundle. What is None, or not in a mapping, has its entry in `problems`.

    Only `verdicts` may be None without one: they follow from the evidence, and are no part of it.
    """

    root: Path
    sealed: bool
    """True when a sound manifest is there; a file may still differ from it (`damaged`)."""
    problems: tuple[Problem, ...]
    plan: evidence.Plan | None = None
    environment: evidence.Environment | None = None
    verdicts: evidence.Verdicts | None = None
    ledger: Stream[evidence.LedgerRecord] | None = None
    engines: Mapping[str, EngineHistory] = field(default_factory=dict)
    runs: Mapping[str, RunHistory] = field(default_factory=dict)
    calls: Mapping[str, CallHistory] = field(default_factory=dict)
    replays: tuple[ReplayHistory, ...] = ()
    digest: str | None = None
    """The manifest's root digest; None when the bundle is not sealed."""

    @property
    def damaged(self) -> bool:
        """True when any of it was changed, is malformed or hostile."""
        return any(problem.kind == "damaged" for problem in self.problems)


def load(root: Path, runs: Collection[str] | None = None) -> Bundle:
    """Loads the bundle at `root`, whatever state it is in.

    With a manifest, a file that differs from it is damaged; without one, the run was interrupted
    and all that is there is loaded. What is damaged is reported, and not handed on.

    Args:
        root: its folder.
        runs: the runs that are wanted; None for all.

    Raises:
        BundleError: when `root` is not a folder that can be opened.
    """
    with Tree(root) as tree, _collector_paused():
        return _Loader(tree, root, runs).load()


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses the cycle collector: records hold no cycles, and its passes double the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Loader:
    """One loading of one bundle."""

    def __init__(self, tree: Tree, root: Path, wanted: Collection[str] | None) -> None:
        self._tree = tree
        self._wanted = wanted
        self._root = root
        self._problems: list[Problem] = []
        self._manifest: evidence.Manifest | None = None
        self._readable: set[str] = set()
        self._damaged: set[str] = set()

        self._oracle = OracleReader(self, root)

    def load(self) -> Bundle:
        inventory = self._tree.inventory()
        for path, fault in inventory.faults.items():
            self.damage(path, fault)
        self._readable.update(inventory.sizes_bytes)
        if not self._verify(inventory.sizes_bytes):
            return Bundle(root=self._root, sealed=False, problems=tuple(self._problems))
        return self._bundle()

    def _verify(self, sizes_bytes: dict[str, int]) -> bool:
        """Reads and applies the manifest; False when it is there and cannot be trusted."""
        if MANIFEST in self._damaged:
            return False
        if MANIFEST not in self._readable:
            self.miss(MANIFEST, "is not there: the run was interrupted, nothing vouches for it")
            return True
        try:
            self._manifest = manifest.read(self._tree)
        except (MalformedError, CutError) as error:
            self.damage(MANIFEST, str(error))
        except OSError as error:
            self.damage(MANIFEST, f"cannot be read ({error.strerror})")
        else:
            for path, fault in manifest.verify(self._tree, self._manifest, sizes_bytes):
                self.damage(path, fault)
        return self._manifest is not None

    def _bundle(self) -> Bundle:
        sealed = self._manifest
        plan = self.document("plan.json", evidence.Plan)
        environment = self.document("environment.json", evidence.Environment)
        ledger = self.stream("ledger.jsonl", "ledger", sealed.bundle if sealed else None)
        engines = {name: self._engine(name) for name in self.folders("engines")}
        wanted = self.folders("runs") if self._wanted is None else self._wanted
        runs = {name: self._run(name, engines) for name in self.folders("runs") if name in wanted}
        calls, replays = self._oracle.calls(), self._oracle.replays()
        if plan is not None:
            self._check_plan(plan, runs)
        return Bundle(
            root=self._root,
            sealed=sealed is not None,
            plan=plan,
            environment=environment,
            # Verdicts follow from the evidence: a sealed bundle may still be without.
            verdicts=self.document("verdicts.json", evidence.Verdicts, needed=sealed is None),
            ledger=ledger,
            engines=engines,
            runs={name: attach(run, calls, replays) for name, run in runs.items()},
            calls=calls,
            replays=replays,
            digest=sealed.root if sealed else None,
            # Last: all of the above adds to them.
            problems=tuple(self._problems),
        )

    def folders(self, parent: str) -> list[str]:
        paths = (path.split("/") for path in self._readable | self._damaged)
        return sorted({parts[1] for parts in paths if parts[0] == parent and len(parts) > 2})

    def _engine(self, name: str) -> EngineHistory:
        folder = f"engines/{name}"
        events = self.stream(f"{folder}/events.jsonl", "engine", name)
        # An engine that was never ready had no configuration to tell.
        ready = events is not None and any(e.event == "ready" for e in events.records)
        return EngineHistory(
            id=name,
            arm=self.document(f"{folder}/spec.json", evidence.Arm),
            effective=self.document(f"{folder}/effective.json", evidence.Effective, needed=ready),
            events=events,
        )

    def _run(self, name: str, engines: Mapping[str, EngineHistory]) -> RunHistory:
        folder = f"runs/{name}"
        run = self._checked_run(name)
        return RunHistory(
            id=name,
            run=run,
            workload=self.document(f"{folder}/requests.json", evidence.Workload),
            outputs=self.stream(f"{folder}/outputs.jsonl", "outputs", name),
            steps=self.stream(f"{folder}/steps.jsonl", "steps", name),
            ranks=dict(self._ranks(name, run)),
            core=self.stream(f"{folder}/core.jsonl", "core", name, needed=False),
            forensics=self.stream(f"{folder}/forensics.jsonl", "forensics", name, needed=False),
            engine=self._engine_of(run, engines),
            sample=self.document(f"{folder}/sample.json", evidence.Sample, needed=False),
        )

    def _checked_run(self, name: str) -> evidence.Run | None:
        path = f"runs/{name}/run.json"
        run = self.document(path, evidence.Run)
        if run is not None and run.id != name:
            self.damage(path, f"names the run '{run.id}', in the folder of '{name}'")
        elif run is not None and run.rank_streams > MAX_RANKS:
            self.damage(path, f"says {run.rank_streams} rank streams; the limit is {MAX_RANKS}")
        else:
            return run
        return None

    def _engine_of(
        self, run: evidence.Run | None, engines: Mapping[str, EngineHistory]
    ) -> EngineHistory | None:
        if run is None:
            return None
        if run.engine not in engines:
            self.miss(f"engines/{run.engine}", f"is not there; the run '{run.id}' names it")
        return engines.get(run.engine)

    def _ranks(
        self, name: str, run: evidence.Run | None
    ) -> Iterator[tuple[int, Stream[evidence.RankRecord]]]:
        expected = set(range(run.rank_streams)) if run else set[int]()
        for rank in sorted(expected | self._recorded_ranks(f"runs/{name}/ranks/")):
            path = f"runs/{name}/ranks/rank{rank}.jsonl"
            if run is not None and rank not in expected:
                self.damage(path, f"is one too many: run.json says {run.rank_streams}")
            elif (stream := self.stream(path, "rank", name)) is not None:
                yield rank, stream

    def _recorded_ranks(self, folder: str) -> set[int]:
        names = (p.removeprefix(folder) for p in self._readable if p.startswith(folder))
        return {int(match[1]) for name in names if (match := _RANK_STREAM.fullmatch(name))}

    def _check_plan(self, plan: evidence.Plan, runs: Mapping[str, RunHistory]) -> None:
        claims = [claim for claim in plan.claims if claim.requirement == "required"]
        wanted = {run: claim.id for claim in claims for run in claim.runs.values()}
        for run in sorted(wanted.keys() - runs.keys()):
            self.miss(f"runs/{run}", f"is not there; the claim '{wanted[run]}' rests on it")

    def document(self, path: str, kind: type[_T], *, needed: bool = True) -> _T | None:
        try:
            handle = self.open(path, needed=needed)
            if handle is not None:
                with handle:
                    return records.read_document(handle, kind)
        except MalformedError as error:
            self.damage(path, str(error))
        except CutError as error:
            self._report_cut(path, str(error))
        except OSError as error:
            self.damage(path, f"cannot be read ({error.strerror})")
        return None

    def stream(
        self, path: str, kind: str, subject: str | None, *, needed: bool = True
    ) -> Stream[Any] | None:
        try:
            handle = self.open(path, needed=needed)
            if handle is None:
                return None
            with handle:
                stream = records.read_stream(handle, path, kind, subject)
        except MalformedError as error:
            self.damage(path, str(error))
        except OSError as error:
            self.damage(path, f"cannot be read ({error.strerror})")
        else:
            self._check_end(stream)
            return stream
        return None

    def open(self, path: str, *, needed: bool = True) -> BufferedReader | None:
        if path in self._damaged:
            return None
        if path in self._readable:
            return self._tree.open(path)
        if needed:
            self.miss(path, "is not there: it was never written")
        return None

    def _report_cut(self, path: str, message: str) -> None:
        # Documents are put in place whole, so a sealed one that is not was made so.
        if self._manifest is None:
            self.miss(path, f"{message}: the run was interrupted while it was written")
        else:
            self.damage(path, message)

    def _check_end(self, stream: Stream[Any]) -> None:
        count = len(stream.records)
        if not stream.complete:
            self.miss(stream.path, f"was cut short: {count} whole records, no end record")
        elif stream.dropped:
            self.miss(stream.path, f"lacks {stream.dropped} records that could not be written")

    def damage(self, path: str, message: str) -> None:
        self._damaged.add(path)
        self._problems.append(Problem("damaged", printable(path), printable(message)))

    def miss(self, path: str, message: str) -> None:
        self._problems.append(Problem("missing", printable(path), printable(message)))
