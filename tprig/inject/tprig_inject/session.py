"""One run in one process: which recorders and faults are in place, and where records go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tprig_inject import seams
from tprig_inject.hooks import Hook, Hooks, Layer


@dataclass
class Context:
    """What a recorder or a fault may use while a run lasts."""

    hooks: Hooks
    write: Callable[[dict[str, Any]], None]
    """Appends a record to where this process's records go."""
    model_runner: Any
    step: int = -1
    """Model steps that this process has begun in this run, less one."""
    _installed: list[Hook] = field(default_factory=list)
    _removers: list[Any] = field(default_factory=list)

    def wrap(self, seam: str, layer: Layer, wrap: Any) -> None:
        """Put a wrapper at a seam for the length of the run."""
        self._installed.append(self.hooks.add(seam, layer, wrap))

    def on_end(self, remover: Any) -> None:
        """Call `remover()` when the run ends."""
        self._removers.append(remover)

    def close(self) -> None:
        """Take everything out again, last in first out."""
        for remover in reversed(self._removers):
            remover()
        for hook in reversed(self._installed):
            self.hooks.remove(hook)


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
        if model_runner is not None:
            context.wrap("model_runner.execute_model", Layer.RECORDER, _count_steps(context))
        for name in recorders:
            _install(RECORDERS[name].install, context, name)
        for name in faults:
            _install(FAULTS[name].install, context, name)

    def end(self) -> None:
        """End the run, if there is one."""
        context, self.context = self.context, None
        if context is not None:
            context.close()


def _install(install: Any, context: Context, name: str) -> None:
    """A recorder whose seam has moved records nothing; what rests on it becomes unknown."""
    try:
        install(context)
    except seams.SeamMovedError as error:
        context.write(
            {
                "type": "seam",
                "name": name,
                "target": "",
                "expected": "the seams of this recorder or fault",
                "found": str(error),
                "ok": False,
            }
        )


def _count_steps(context: Context) -> Any:
    def wrap(original: Any) -> Any:
        def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            # A call that schedules no token only carries news of finished requests.
            context.step += scheduler_output.total_num_scheduled_tokens > 0
            return original(self, scheduler_output, *args, **kwargs)

        return execute_model

    return wrap
