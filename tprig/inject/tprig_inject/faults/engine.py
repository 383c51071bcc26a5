"""Faults of an engine as a whole: that it dies, falls silent, refuses, or leaves something."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tprig_inject.faults.base import ENGINE, Fault, Once

OUTLIVES_S = "600"
"""How long an orphan would live if nobody ended it, in seconds."""


def _at_schedule(once: Once, then: Callable[[], Any], detail: str, calls_before: int) -> None:
    calls = [0]

    def wrap(original: Any) -> Any:
        def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls[0] += 1
            if calls[0] > calls_before and not once.spent:
                once.strike(detail)
                then()
            return original(self, *args, **kwargs)

        return schedule

    once.wrap("scheduler.schedule", wrap)


def _dies(once: Once) -> None:
    """The process of the scheduler is killed between two steps."""
    _at_schedule(once, lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL", 2)


def _never_answers(once: Once) -> None:
    """The engine takes requests, and schedules none of them."""
    _at_schedule(once, lambda: threading.Event().wait(), "waits for ever", 0)


def _refuses(once: Once) -> None:
    """A request is refused by an error without a word."""

    def wrap(original: Any) -> Any:
        def add_request(self: Any, request_id: str, *args: Any, **kwargs: Any) -> Any:
            if not once.spent:
                once.strike(f"request {request_id} refused without a reason")
                raise ValueError
            return original(self, request_id, *args, **kwargs)

        return add_request

    once.wrap("llm_engine.add_request", wrap)


def _ends_early(once: Once) -> None:
    """A request is given a token less than it asked for."""

    def wrap(original: Any) -> Any:
        def add_request(
            self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
        ) -> Any:
            if not once.spent and (params.max_tokens or 0) > 1:
                params = params.clone()
                params.max_tokens -= 1
                once.strike(f"request {request_id}: at most {params.max_tokens} tokens")
            return original(self, request_id, prompt, params, *args, **kwargs)

        return add_request

    once.wrap("llm_engine.add_request", wrap)


def _miscounts(once: Once) -> None:
    """The scheduler counts an accepted draft that was refused."""

    def wrap(original: Any) -> Any:
        def observe_draft(
            self: Any, num_draft_tokens: int, num_accepted_tokens: int, *args: Any, **kwargs: Any
        ) -> Any:
            if not once.spent and num_accepted_tokens < num_draft_tokens:
                num_accepted_tokens += 1
                once.strike(f"{num_accepted_tokens} accepted tokens counted, one too many")
            return original(self, num_draft_tokens, num_accepted_tokens, *args, **kwargs)

        return observe_draft

    once.wrap("spec_decoding_stats.observe_draft", wrap)


def _orphan(once: Once) -> None:
    """A worker starts a process that does not end with it."""

    def wrap(original: Any) -> Any:
        def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not once.spent:
                # It stays in the engine's session, as a worker of its own would.
                child = subprocess.Popen(["/bin/sleep", OUTLIVES_S], start_new_session=False)
                once.strike(f"process {child.pid} is started")
            return original(self, *args, **kwargs)

        return sample

    once.wrap("model_runner.sample", wrap)


def _memory_kept(once: Once) -> None:
    """A process outside of the engine's session holds memory of its device for a while."""
    once.arm()
    device = str(once.context.model_runner.device)
    child = subprocess.Popen([sys.executable, "-c", HOLD, device], start_new_session=True)
    once.strike(f"process {child.pid} holds memory of {device}")


HOLD = """
import sys, time, torch
held = torch.ones(1 << 28, device=sys.argv[1])
time.sleep(120)
"""
"""Longer than the driver may take to give memory back, and not for ever."""


FAULTS: Mapping[str, Fault] = {
    "ends-early": Fault(
        plant=_ends_early,
        process="core",
        resembles="max_tokens compared with a count that holds the prompt's last token",
        anomaly="output.tokens",
    ),
    "accepted-miscounted": Fault(
        plant=_miscounts,
        process="core",
        resembles="counters of accepted drafts that hold the token after them",
        anomaly="output.acceptance",
    ),
    "core-dies": Fault(
        plant=_dies,
        process="core",
        resembles="an engine core that the kernel kills",
        anomaly="engine.crash",
        judges=ENGINE,
        lethal=True,
    ),
    "never-answers": Fault(
        plant=_never_answers,
        process="core",
        resembles="an engine that is ready but never answers",
        anomaly="engine.hang",
        judges=ENGINE,
        lethal=True,
    ),
    "refusal-without-reason": Fault(
        plant=_refuses,
        process="core",
        resembles="a request that is refused without a reason",
        anomaly="engine.refusal",
        judges=ENGINE,
        lethal=True,
    ),
    "orphan-worker": Fault(
        plant=_orphan,
        resembles="a worker that its engine's shutdown forgets",
        anomaly="engine.leak",
        judges=ENGINE,
        lethal=True,
    ),
    "memory-kept": Fault(
        plant=_memory_kept,
        resembles="memory of a GPU that is still held when the engine is gone",
        anomaly="gpu.leak",
        judges=ENGINE,
        lethal=True,
        cuda_only=True,
    ),
}
