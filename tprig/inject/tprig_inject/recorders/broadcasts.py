"""Records what the engine core broadcasts to its workers, where the core shares our process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tprig_inject.context import Context
from tprig_inject.hooks import Layer
from tprig_inject.recorders.decisions import schedule
from tprig_inject.session import Session
from tprig_inject.stream import RankStream

SEAMS = ("message_queue.enqueue",)
OURS = "tprig_"
"""Begins the methods that the rig itself calls in workers: no part of the engine's sequence."""


def watch(session: Session, message: dict[str, Any]) -> None:
    """Write the stream of the engine core for the length of a run, if this process has it.

    Args:
        session: the host's part in the run.
        message: what the client asked for: `run`, `ranks` (folder), `recorders`.
    """
    # It is in a process of its own otherwise.
    here = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0"
    if session.context is None or not here or "decisions" not in message["recorders"]:
        return
    stream = RankStream(Path(message["ranks"]).parent / "core.jsonl", message["run"], "core")
    session.context.on_end(stream.close)
    context = Context(session.hooks, stream.write, None)
    session.context.on_end(context.close)
    context.install(install, "broadcasts")


def install(context: Context) -> None:
    """Write a `broadcast` for each call of a method of all workers, before it is sent."""
    number = 0

    def wrap(original: Any) -> Any:
        def enqueue(self: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal number
            if (told := _told(obj)) is not None:
                context.write({"type": "broadcast", "number": number, **told})
                number += 1
            return original(self, obj, *args, **kwargs)

        return enqueue

    context.wrap("message_queue.enqueue", Layer.RECORDER, wrap)


def _told(message: Any) -> dict[str, Any] | None:
    """The method and, of a step, its schedule; None for what is no call of workers, or ours."""
    if not (isinstance(message, tuple) and len(message) == 4):
        return None
    method, args, _, _ = message
    if not isinstance(method, (str, bytes)) or str(method).startswith(OURS):
        return None
    name = method if isinstance(method, str) else "a function of its own"
    return {"method": name, "facts": schedule(args[0]) if name == "execute_model" else None}
