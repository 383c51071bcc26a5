"""Turns vLLM's objects into records of the evidence schema."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Clock:
    """Nanoseconds since it was made."""

    def __init__(self) -> None:
        self._start_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        """Monotonic."""
        return time.monotonic_ns() - self._start_ns


def number(value: float) -> float | str:
    """A float as JSON can hold it."""
    return value if math.isfinite(value) else str(value)


def failure(event: str, error: Exception) -> Record:
    """Why an engine is not there (any more)."""
    return {"type": event, "error": type(error).__name__, "message": str(error)}


def refusal(request: str, error: Exception) -> Record:
    """A request that vLLM did not take."""
    return {
        "type": "refusal",
        "request": request,
        "error": type(error).__name__,
        "message": str(error),
    }


def sampling_params(sampling: Record) -> Any:
    """The `SamplingParams` of a request: every output is a delta, nothing is detokenized."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    fields = dict(sampling)
    bad_words = fields.pop("bad_words_token_ids")
    bias = fields.pop("logit_bias")
    params = SamplingParams(
        **fields,
        logit_bias=None if bias is None else {int(token): value for token, value in bias.items()},
        detokenize=False,
        flat_logprobs=True,
        output_kind=RequestOutputKind.DELTA,
    )
    if bad_words is not None:
        # `bad_words` takes text and needs a tokenizer; this is the field that it fills.
        params._bad_words_token_ids = bad_words
    return params


def emission(step: int, first: int, output: Any, vocab_size: int) -> Record:
    """What one step returned for one request."""
    completion = output.outputs[0]
    mask = completion.sampling_mask
    return {
        "type": "emission",
        "step": step,
        "request": output.request_id,
        "first": first,
        "rows": _rows(list(completion.token_ids), completion.logprobs, vocab_size),
        "supports": None if mask is None else [list(map(int, ids)) for ids in mask.token_ids],
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }


def _rows(token_ids: list[int], logprobs: Any, vocab_size: int) -> list[Record]:
    if logprobs is None:
        empty = {"logprob": None, "rank": None, "finite": None}
        return [{"token_id": token, **empty} for token in token_ids]
    return [_row(token, logprobs, i, vocab_size) for i, token in enumerate(token_ids)]


def _row(token: int, logprobs: Any, position: int, vocab_size: int) -> Record:
    """One row of `FlatLogprobs`: the emitted token first, then the top ones, descending."""
    start, end = logprobs.start_indices[position], logprobs.end_indices[position]
    ids, values = logprobs.token_ids[start:end], logprobs.logprobs[start:end]
    top = list(zip(ids[1:], values[1:], strict=True))
    finite = [(i, value) for i, value in top if value != -math.inf]
    return {
        "token_id": token,
        "logprob": number(values[0]) if ids[0] == token else None,
        "rank": logprobs.ranks[start],
        "finite": {
            "token_ids": [i for i, _ in finite],
            "logprobs": [number(value) for _, value in finite],
            "complete": len(finite) < len(top) or len(top) >= vocab_size,
        },
    }


class Statistics:
    """A stat logger for vLLM that keeps what the scheduler counted in the last step."""

    def __init__(self) -> None:
        self._scheduler: Any = None
        self._iteration: Any = None

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """Called by vLLM once per step."""
        self._scheduler, self._iteration = scheduler_stats, iteration_stats

    def log_engine_initialized(self) -> None:
        """Called by vLLM; nothing to say."""

    def log(self) -> None:
        """Called by vLLM at intervals; nothing to say."""

    def record_sleep_state(self, *_args: Any, **_kwargs: Any) -> None:
        """Called by vLLM; engines here do not sleep."""

    def take(self, step: int, start_ns: int, end_ns: int) -> Record:
        """The `step` record of the step that has just ended."""
        scheduler, iteration = self._scheduler, self._iteration
        self._scheduler = self._iteration = None
        drafts = getattr(scheduler, "spec_decoding_stats", None)
        per_position = getattr(drafts, "num_accepted_tokens_per_pos", None)
        return {
            "type": "step",
            "step": step,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "running": getattr(scheduler, "num_running_reqs", None),
            "waiting": getattr(scheduler, "num_waiting_reqs", None),
            "preempted": getattr(iteration, "num_preempted_reqs", None),
            "drafts": getattr(drafts, "num_drafts", None),
            "draft_tokens": getattr(drafts, "num_draft_tokens", None),
            "accepted_tokens": getattr(drafts, "num_accepted_tokens", None),
            "accepted_per_position": None if per_position is None else list(per_position),
        }


def description(engine: Any, workers: list[Record], imported: dict[str, str]) -> Record:
    """What the engine does, as it says itself: the `effective.json` of the bundle."""
    import vllm

    return {
        "vllm_version": vllm.__version__,
        "vllm_digest": _digest(imported),
        "vllm_path": str(Path(vllm.__file__).parent),
        "versions": _versions(),
        "config": _flatten(engine.vllm_config),
        "pids": {"host": os.getpid()} | {f"rank{w['rank']}": w["pid"] for w in workers},
        "vocab_size": workers[0]["vocab_size"],
        "imported_files": len(imported),
    }


def _digest(files: dict[str, str]) -> str:
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _versions() -> dict[str, str]:
    import torch

    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("triton", "transformers", "numpy", "safetensors"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return versions


_SECTIONS = ("model", "cache", "parallel", "scheduler", "speculative", "compilation", "attention")
_PLAIN = (bool, int, float, str)


def _flatten(config: Any) -> dict[str, str]:
    flat = {}
    for section in _SECTIONS:
        part = getattr(config, f"{section}_config", None)
        for name, value in _fields(part):
            if value is None or isinstance(value, (*_PLAIN, enum.Enum)) or name == "dtype":
                flat[f"{section}.{name}"] = str(getattr(value, "name", value))
    return flat


def _fields(part: Any) -> list[tuple[str, Any]]:
    if not dataclasses.is_dataclass(part):
        return []
    names = (field.name for field in dataclasses.fields(part))
    return [(name, getattr(part, name, None)) for name in names]
