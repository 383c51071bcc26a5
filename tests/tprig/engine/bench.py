"""What the tests with a real engine share: a tiny model, tiny workloads, and who bears witness."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import msgspec

from fixtures.checkpoints.cache import checkpoint
from fixtures.checkpoints.mtp import MtpRecipe
from tprig import evidence
from tprig.bundle import Writer, load
from tprig.engine import Deadlines, Engine, Order
from tprig.history import RunHistory
from tprig.remains import SHM
from tprig.spec import EngineSpec
from tprig.template import Template
from tprig.wire import poll

VOCAB_SIZE = 509
RECIPE = MtpRecipe(
    vocab_size=VOCAB_SIZE,
    hidden_size=64,
    intermediate_size=64,
    num_layers=1,
    num_heads=2,
    num_kv_heads=2,
)
PATIENCE_S = 60.0
"""How long an end may take before a test fails; no test passes by it."""
SHORT = 6
LONG = 200
"""Output tokens of requests that are over soon, and of those that something happens to."""


def tiny_checkpoint(root: Path) -> Path:
    """The model, built into `root`."""
    return checkpoint(RECIPE, root)


def spec(model: Path, tp: int = 1, **changes: Any) -> EngineSpec:  # noqa: ANN401 - a spec's fields
    """An engine of the model that speculates."""
    arguments = {
        "dtype": "float32",
        "max_model_len": 256,
        "max_num_seqs": 4,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 2},
        **changes.pop("arguments", {}),
    }
    return EngineSpec(model=model, tensor_parallel_size=tp, arguments=arguments, **changes)


def order(
    run: str,
    max_tokens: int = SHORT,
    width: int = 20,
    **changes: Any,  # noqa: ANN401 - an order's fields
) -> Order:
    """Two requests that sample from so many tokens, and ask for the logprobs of all of them."""
    requests = [
        evidence.Request(
            id=f"r{index}",
            prompt_token_ids=[5, 6, 7 + index],
            arrival_step=0,
            sampling=evidence.Sampling(
                temperature=1.0, max_tokens=max_tokens, top_k=width, seed=index, logprobs=width
            ),
        )
        for index in range(2)
    ]
    return Order(run=run, test="a test", workload=workload(requests), **changes)


def workload(requests: list[evidence.Request]) -> evidence.Workload:
    """These requests."""
    return evidence.Workload(profile="tiny", seed=0, vocab_size=VOCAB_SIZE, requests=requests)


class Bench:
    """Makes engines that write to one bundle; what a failed test leaves is stopped at the end."""

    def __init__(self, model: Path, template: Template, root: Path) -> None:
        self.model = model
        self.template = template
        self.writer = Writer(root)
        self.root = root
        self._engines: list[Engine] = []

    def engine(
        self,
        tp: int = 1,
        *,
        deadlines: Deadlines | None = None,
        template: Template | None = None,
        **changes: Any,  # noqa: ANN401 - a spec's fields
    ) -> Engine:
        """A new engine, not started."""
        engine = Engine(
            f"e{len(self._engines)}",
            spec(changes.pop("model", self.model), tp, **changes),
            template=template or self.template,
            writer=self.writer,
            deadlines=deadlines,
        )
        self._engines.append(engine)
        return engine

    def started(self, tp: int = 1, **changes: Any) -> Engine:  # noqa: ANN401 - a spec's fields
        """A new engine that serves."""
        engine = self.engine(tp, **changes)
        engine.start()
        return engine

    def events(self, engine: Engine) -> list[evidence.EngineEvent]:
        """What happened to an engine, as it was written."""
        lines = (self.root / "engines" / engine.id / "events.jsonl").read_bytes().splitlines()
        union = evidence.Header | evidence.EngineEvent | evidence.End
        records = [msgspec.json.decode(line, type=union) for line in lines]
        return [record for record in records if isinstance(record, evidence.EngineEvent)]

    def names(self, engine: Engine) -> list[str]:
        """The names of those events."""
        return [event.event for event in self.events(engine)]

    def event(self, engine: Engine, name: evidence.EventName) -> evidence.EngineEvent:
        """The only event of that name."""
        (found,) = (event for event in self.events(engine) if event.event == name)
        return found

    def history(self, run: str) -> RunHistory:
        """A run as a reader of the bundle gets it."""
        return load(self.root).runs[run]

    def outputs(self, run: str) -> list[evidence.OutputRecord]:
        """What a run returned, as it was written."""
        stream = self.history(run).outputs
        assert stream is not None
        return list(stream.records)

    def rows(self, run: str) -> int:
        """Tokens that a run emitted."""
        emissions = (o for o in self.outputs(run) if isinstance(o, evidence.Emission))
        return sum(len(emission.rows) for emission in emissions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop what a test has not."""
        for engine in self._engines:
            if engine.processes.footprint.runtime.exists():
                engine.abort()
                engine.stop()


class Witness:
    """Sees processes end, whoever gets their ids afterwards."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.pids = tuple(pids)
        self._descriptors = [os.pidfd_open(pid) for pid in self.pids]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)

    def living(self, patience_s: float = 0.0) -> list[int]:
        """Those that have not ended within that time."""
        for descriptor in self._descriptors:
            poll([descriptor], patience_s)
        ended = set(poll(self._descriptors, 0))
        pairs = zip(self.pids, self._descriptors, strict=True)
        return [pid for pid, descriptor in pairs if descriptor not in ended]


def left(engine: Engine) -> list[Path]:
    """What lies around of an engine, its runtime folder included."""
    footprint = engine.processes.footprint
    folder = [footprint.runtime] if footprint.runtime.exists() else []
    return [*folder, *SHM.glob(f"*{footprint.shm_prefix}*")]


def descriptors(pid: int) -> dict[str, str]:
    """The open files of a process: what each descriptor stands for."""
    folder = Path(f"/proc/{pid}/fd")
    found = {}
    for entry in folder.iterdir():
        # The one that lists the folder is closed by now.
        if entry.is_symlink():
            found[entry.name] = str(entry.readlink())
    return found
