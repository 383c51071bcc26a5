"""Runs the engine host for real, on an engine that only looks like one from outside."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tprig_inject import host
from tprig_inject.channel import Channel
from tprig_inject.worker import WorkerExtension
from vllm.config import CacheConfig, ParallelConfig, SchedulerConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.logprobs import FlatLogprobs, append_logprobs_for_next_position
from vllm.outputs import CompletionOutput, RequestOutput, SamplingMask
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import multiproc_executor
from vllm.v1.metrics.stats import IterationStats, SchedulerStats
from vllm.v1.outputs import SamplingMaskLists
from vllm.v1.spec_decode.metrics import SpecDecodingStats
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from tests.tprig.inject.foreign.sampling import mask_tensors, sampled

VOCAB_SIZE = 40
TOKENS_PER_STEP = 2
SUPPORT = [3, 5, 8]


class Worker(WorkerExtension):
    """The only rank, without a model."""

    rank = 0

    def __init__(self) -> None:
        self.model_runner = SimpleNamespace(vocab_size=VOCAB_SIZE)


class Engine:
    """Emits two tokens per request and step, all alike, until `max_tokens` are there."""

    def __init__(self, logger: Any, trouble: str | None) -> None:
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(get_vocab_size=lambda: VOCAB_SIZE),
            cache_config=CacheConfig(),
            parallel_config=ParallelConfig(),
            scheduler_config=SchedulerConfig.default_factory(),
        )
        self.engine_core = SimpleNamespace(shutdown=self._shut_down)
        self.added: list[tuple[int, str]] = []
        self.params: dict[str, SamplingParams] = {}
        self.down = False
        self._logger = logger
        self._trouble = trouble
        self._worker = Worker()
        self._left: dict[str, int] = {}
        self.aborted: list[tuple[int, str]] = []
        self._step = 0

    def _shut_down(self) -> None:
        self.down = True

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        return [getattr(self._worker, method)(*args)]

    def add_request(self, name: str, prompt: dict[str, Any], params: SamplingParams) -> None:
        if name.startswith("refused"):
            raise ValueError(f"{name} of {len(prompt['prompt_token_ids'])} tokens")
        self.added.append((self._step, name))
        self.params[name] = params
        self._left[name] = params.max_tokens

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self.aborted.append((self._step, name))
            self._left.pop(name, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self._left)

    def step(self) -> list[RequestOutput]:
        if self._trouble == "step":
            raise RuntimeError("the engine core died")
        runner = self._worker.model_runner
        GPUModelRunner.execute_model(runner, SimpleNamespace(total_num_scheduled_tokens=1))
        GPUModelRunner.sample(runner, None, _batch(list(self._left)), None)
        outputs = [self._output(index, name) for index, name in enumerate(list(self._left))]
        self._log(len(outputs))
        self._left = {name: left for name, left in self._left.items() if left}
        self._step += 1
        return outputs

    def _output(self, index: int, name: str) -> RequestOutput:
        count = min(TOKENS_PER_STEP, self._left[name])
        self._left[name] -= count
        logprobs = FlatLogprobs()
        for _ in range(count):
            append_logprobs_for_next_position(
                logprobs, [5, 8, 5, 3, 9], [-1.5, -0.5, -1.5, -2.5, -np.inf], [None] * 5, 2, 4
            )
        masks = _masks(len(self._left)).slice_request(index, count).to_nested_list()
        done = not self._left[name]
        completion = CompletionOutput(
            index=0,
            text="",
            token_ids=[5] * count,
            cumulative_logprob=None,
            logprobs=logprobs,
            sampling_mask=SamplingMask(masks),
            finish_reason="length" if done else None,
            stop_reason=None,
        )
        return RequestOutput(name, None, [1], None, [completion], finished=done)

    def _log(self, running: int) -> None:
        drafts = SpecDecodingStats.new(3)
        drafts.observe_draft(3, 1)
        self._logger.record(
            SchedulerStats(num_running_reqs=running, spec_decoding_stats=drafts), IterationStats()
        )


def _masks(requests: int) -> SamplingMaskLists:
    rows = requests * TOKENS_PER_STEP
    offsets = np.arange(rows + 1) * len(SUPPORT)
    bounds = np.arange(requests + 1) * TOKENS_PER_STEP
    return SamplingMaskLists(np.array(SUPPORT * rows, np.int32), offsets, bounds.tolist())


def _batch(names: list[str]) -> Any:
    rows = np.arange(len(names) + 1) * 4
    return SimpleNamespace(
        req_ids=[f"{name}-0123abcd" for name in names],
        input_ids=np.arange(rows[-1]),
        logits_indices=np.arange(rows[-1]),
        cu_num_logits_np=rows,
        num_scheduled_tokens=np.diff(rows),
    )


def _execute_model(self: Any, scheduler_output: Any) -> None:
    pass


def _sample(self: Any, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
    requests = len(input_batch.req_ids)
    mask = mask_tensors([[[5, 8], [5]]] * requests, slots=4, width=6)
    return sampled([[5, 5]] * requests, slots=4, drafted=[3] * requests, mask=mask)


def serve(
    folder: str,
    messages: list[dict[str, Any]],
    *,
    trouble: str | None = None,
    request: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run the engine host until it has answered some messages.

    Args:
        folder: where it finds a place for everything it writes.
        messages: what the client sends, all at once; then it closes its end.
        trouble: `build` or `step`, for an engine that raises there.
        request: what the client asks the template for, beyond the usual.

    Returns:
        `lines` that it sent, its exit `code`, what `added` says of requests, `facts` of it.
    """
    GPUModelRunner.execute_model, GPUModelRunner.sample = _execute_model, _sample
    engines: list[Engine] = []

    def build(arguments: EngineArgs, stat_loggers: list[Callable[..., Any]], **options: Any) -> Any:
        if trouble == "build":
            raise ValueError("block size 7 is not supported")
        facts.update(arguments=arguments, **options)
        engines.append(Engine(stat_loggers[0](None, 0), trouble))
        return engines[0]

    facts: dict[str, Any] = {}
    LLMEngine.from_engine_args = build
    ours, theirs = socket.socketpair()
    client = Channel(ours)
    for message in messages:
        client.send(message)
    ours.shutdown(socket.SHUT_WR)
    code = host.main(Channel(theirs), {**_request(folder), **(request or {})})
    theirs.shutdown(socket.SHUT_WR)
    with ours.makefile("r") as lines:
        told = [line.rstrip("\n") for line in lines]
    return {"lines": told, "code": code, **_facts(facts, engines)}


def _request(folder: str) -> dict[str, Any]:
    return {
        "engine": "e1",
        "runtime": folder,
        "shm_prefix": "tprig-e1-",
        "log": str(Path(folder) / "host.log"),
        "platform": "cpu",
        "environment": {"TPRIG_TEST": "seen", "TPRIG_LEASE_ID": "7f"},
        "engine_args": {"model": folder, "seed": 7},
        "core_process": False,
        "affinity": None,
        "ranks_per_device": 1,
        "seams": {},
    }


def _facts(facts: dict[str, Any], engines: list[Engine]) -> dict[str, Any]:
    if not engines:
        return {}
    (engine,) = engines
    arguments = facts["arguments"]
    return {
        "added": engine.added,
        "aborted": engine.aborted,
        "down": engine.down,
        "params": {name: repr(params) for name, params in engine.params.items()},
        "arguments": [arguments.model, arguments.seed, arguments.worker_extension_cls],
        "core_process": facts["enable_multiprocessing"],
        "environment": {
            name: os.environ.get(name)
            for name in ("TPRIG_TEST", "TPRIG_INJECT", "VLLM_ENABLE_V1_MULTIPROCESSING", "TMPDIR")
        },
        "open": [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists()],
        "affinity": sorted(os.sched_getaffinity(0)),
        "start_method": multiproc_executor.get_mp_context().get_start_method(),
        "rendezvous": multiproc_executor.get_file_store_init_method(),
    }
