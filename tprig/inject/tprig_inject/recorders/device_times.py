"""Records where copy and proposal of each step lie on the device's timeline, by CUDA events.

A diagnostic, never in a timed run: events take time to record, and are read when the run ends.
Without CUDA there is no such timeline, and nothing is recorded.
"""

from __future__ import annotations

import inspect
from typing import Any

from tprig_inject.context import Context
from tprig_inject.hooks import Layer

SEAMS = ("model_runner.execute_model", "async_output.init", "speculator.propose")

_NAMES = ("copy_start", "copy_end", "proposal_start", "proposal_end")


def install(context: Context) -> None:
    """Write a `device-times` record per step that has both, when the run ends."""
    import torch

    if torch.cuda.is_available():
        timeline = Timeline(context, lambda: torch.cuda.Event(enable_timing=True))
        timeline.install(torch.cuda.current_stream, torch.cuda.synchronize)


class Timeline:
    """The events of each step.

    Args:
        context: the run's.
        make_event: makes one that keeps time.
    """

    def __init__(self, context: Context, make_event: Any) -> None:
        self._context = context
        self._make = make_event
        self._steps: list[dict[str, Any]] = []

    def install(self, current_stream: Any, synchronize: Any) -> None:
        """Record at the seams, and read everything once the device is done.

        Args:
            current_stream: returns the stream that work is given to.
            synchronize: waits until the device has done all of it.
        """

        def finish() -> None:
            synchronize()
            self._write()

        # First in, so last out: nothing records any more when it is called.
        self._context.on_end(finish)
        self._context.wrap(
            "model_runner.execute_model", Layer.RECORDER, self._around_model(current_stream)
        )
        self._context.wrap("async_output.init", Layer.RECORDER, self._around_copy)
        self._context.wrap(
            "speculator.propose", Layer.RECORDER, self._around_proposal(current_stream)
        )

    def _mark(self, name: str, stream: Any) -> None:
        if self._steps:
            event = self._make()
            event.record(stream)
            self._steps[-1][name] = event

    def _around_model(self, current_stream: Any) -> Any:
        def wrap(original: Any) -> Any:
            def execute_model(self_: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
                if scheduler_output.total_num_scheduled_tokens > 0:
                    self._steps.append({"step": max(self._context.step, 0)})
                    self._mark("base", current_stream())
                return original(self_, scheduler_output, *args, **kwargs)

            return execute_model

        return wrap

    def _around_copy(self, original: Any) -> Any:
        signature = inspect.signature(original)

        def init(self_: Any, *args: Any, **kwargs: Any) -> None:
            given = signature.bind(self_, *args, **kwargs).arguments
            # The copy waits for the main stream as it is at this moment.
            self._mark("copy_start", given["main_stream"])
            original(self_, *args, **kwargs)
            self._mark("copy_end", given["copy_stream"])

        return init

    def _around_proposal(self, current_stream: Any) -> Any:
        def wrap(original: Any) -> Any:
            def propose(self_: Any, *args: Any, **kwargs: Any) -> Any:
                self._mark("proposal_start", current_stream())
                drafts = original(self_, *args, **kwargs)
                self._mark("proposal_end", current_stream())
                return drafts

            return propose

        return wrap

    def _write(self) -> None:
        for step in self._steps:
            if all(name in step for name in ("base", *_NAMES)):
                times = {f"{n}_ms": float(step["base"].elapsed_time(step[n])) for n in _NAMES}
                self._context.write({"type": "device-times", "step": step["step"], **times})
