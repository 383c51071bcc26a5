"""One run in one process: which recorders and faults are in place, and where records go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tprig_inject import seams
from tprig_inject.hooks import Hooks, Layer, Wrap


@dataclass
class Context:
    """What a recorder or a fault may use while a run lasts."""

    hooks: Hooks
    write: Callable[[dict[str, Any]], None]
    """Appends a record to where this process's records go."""
    model_runner: Any
    step: int = -1
    """Model steps that this process has begun in this run, less one."""
    _removers: list[Callable[[], Any]] = field(default_factory=list)

    def wrap(self, seam: str, layer: Layer, wrap: Wrap) -> None:
        """Put a wrapper at a seam for the length of the run.

        Raises:
            seams.SeamMovedError: if the seam does not look as expected.
        """
        self.on_end(partial(self.hooks.remove, self.hooks.add(seam, layer, wrap)))

    def on_end(self, remover: Callable[[], Any]) -> None:
        """Call `remover()` when the run ends."""
        self._removers.append(remover)

    def install(self, install: Callable[[Context], None], name: str) -> bool:
        """Put a recorder or a fault in place, whole or not at all.

        Returns:
            False when one of its seams has moved, which is written down.
        """
        before = len(self._removers)
        try:
            install(self)
        except seams.SeamMovedError as error:
            self._take_out(before)
            self.write(_moved(name, error))
            return False
        return True

    def close(self) -> None:
        """Take everything out again, last in first out."""
        self._take_out(0)

    def _take_out(self, kept: int) -> None:
        while len(self._removers) > kept:
            self._removers.pop()()


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
    ) -> None:
        """Begin a run; a run that never ended is ended first.

        Where a seam has moved, the recorder or fault that rests on it is left out. Every recorder
        in a worker rests on the count of steps as well.

        Args:
            write: appends a record to where this process's records go.
            recorders: names of `RECORDERS`.
            faults: names of `FAULTS`.
            model_runner: the worker's, None where the scheduler runs.
        """
        from tprig_inject.faults import FAULTS
        from tprig_inject.recorders import RECORDERS

        self.end()
        self.context = context = Context(self.hooks, write, model_runner)
        # Nothing stands in the way of a run that nothing is recorded of.
        counts = model_runner is not None and (recorders or faults)
        counted = not counts or context.install(_count_steps, "steps")
        for name in recorders if counted else ():
            context.install(RECORDERS[name].install, name)
        for name in faults:
            context.install(FAULTS[name].install, name)

    def end(self) -> None:
        """End the run, if there is one."""
        context, self.context = self.context, None
        if context is not None:
            context.close()


def _moved(name: str, error: seams.SeamMovedError) -> dict[str, Any]:
    return {
        "type": "seam",
        "name": name,
        "target": "",
        "expected": "the seams of this recorder or fault",
        "found": str(error),
        "ok": False,
    }


def _count_steps(context: Context) -> None:
    def wrap(original: Any) -> Any:
        def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            # A call that schedules no token only carries news of finished requests.
            context.step += scheduler_output.total_num_scheduled_tokens > 0
            return original(self, scheduler_output, *args, **kwargs)

        return execute_model

    context.wrap("model_runner.execute_model", Layer.RECORDER, wrap)
