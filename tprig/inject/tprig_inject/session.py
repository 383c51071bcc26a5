"""One run in one process: which recorders and faults are in place, and where records go."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tprig_inject.context import Context
from tprig_inject.faults import plant
from tprig_inject.hooks import Hooks, Layer
from tprig_inject.recorders import find


class Session:
    """A worker's or a scheduler's part in one run; the two may share a process and its hooks."""

    def __init__(self, hooks: Hooks) -> None:
        self.hooks = hooks
        self.context: Context | None = None

    def begin(
        self,
        *,
        write: Callable[[dict[str, Any]], None],
        recorders: list[str],
        faults: list[str],
        model_runner: Any,
        rank: int = 0,
        oracles: Path | None = None,
    ) -> None:
        """Begin a run; a run that never ended is ended first.

        Where a seam has moved, the recorder or fault that rests on it is left out. Every recorder
        in a worker rests on the count of steps as well.

        Args:
            write: appends a record to where this process's records go.
            recorders: names of `RECORDERS`, with options behind a question mark.
            faults: names of `FAULTS`.
            model_runner: the worker's, None where the scheduler runs.
            rank: the worker's.
            oracles: the bundle's folder of captured calls.
        """
        self.end()
        self.context = context = Context(self.hooks, write, model_runner, rank, oracles)
        # Nothing stands in the way of a run that nothing is recorded of.
        counts = model_runner is not None and (recorders or faults)
        counted = not counts or context.install(_count_steps, "steps")
        for name in recorders if counted else ():
            base, install = find(name)
            context.install(install, base)
        for name in faults:
            context.install(partial(plant, name), name)

    def end(self) -> None:
        """End the run, if there is one."""
        context, self.context = self.context, None
        if context is not None:
            context.close()


def _count_steps(context: Context) -> None:
    def wrap(original: Any) -> Any:
        def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            # A call that schedules no token only carries news of finished requests.
            context.step += scheduler_output.total_num_scheduled_tokens > 0
            return original(self, scheduler_output, *args, **kwargs)

        return execute_model

    context.wrap("model_runner.execute_model", Layer.RECORDER, wrap)
