"""Records what a worker settles and collectives follow from, flushed as it does so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tprig_inject import seams
from tprig_inject.context import Context
from tprig_inject.hooks import Layer
from tprig_inject.recorders.verification import external_id

SEAMS = ("model_runner.execute_model", "model_runner.sample")


class Decisions:
    """Writes `decision` records, which say how many calls came before."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __call__(self, kind: str, facts: dict[str, Any], step: int | None = None) -> None:
        """Something is settled, in the current step unless another one is given."""
        context = self._context
        log, step = context.log, context.step if step is None else step
        context.write(
            {
                "type": "decision",
                "step": max(0, step),
                "at": 0 if log is None else log.entered,
                "kind": kind,
                "facts": facts,
            }
        )


def install(context: Context) -> None:
    """Write a `decision` for the schedule, the batch, the acceptance and the drafter of a step."""
    decide = Decisions(context)
    context.wrap("model_runner.execute_model", Layer.RECORDER, _scheduled(context, decide))
    context.wrap("model_runner.sample", Layer.RECORDER, _accepted(decide))
    _covered(context, "batch", lambda: _dispatched(context, decide))
    _covered(context, "draft", lambda: _drafted(context, decide))


def _covered(context: Context, path: str, hook: Callable[[], str]) -> None:
    """Hook what the record is poorer without, and say whether it is hooked."""
    try:
        hooked, detail = True, hook()
    except seams.SeamMovedError as error:
        hooked, detail = False, str(error)
    context.write(
        {
            "type": "coverage",
            "path": path,
            "layer": "decision",
            "hooked": hooked,
            "needed": True,
            "detail": detail,
        }
    )


def _scheduled(context: Context, decide: Decisions) -> Any:
    def wrap(original: Any) -> Any:
        def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            # The step is counted within: a recorder that came first stands further in.
            begins = scheduler_output.total_num_scheduled_tokens > 0
            decide("schedule", schedule(scheduler_output), context.step + begins)
            return original(self, scheduler_output, *args, **kwargs)

        return execute_model

    return wrap


def schedule(output: Any) -> dict[str, Any]:
    """What the engine core broadcast, by the client's request ids, in its order."""
    return {
        "tokens": _by_client(output.num_scheduled_tokens, int),
        "drafts": _by_client(output.scheduled_spec_decode_tokens, len),
        "finished": sorted(map(external_id, output.finished_req_ids)),
        "preempted": sorted(map(external_id, getattr(output, "preempted_req_ids", None) or ())),
    }


def _by_client(by_request: Mapping[str, Any], count: Callable[[Any], int]) -> dict[str, int]:
    # A worker waits for this: nothing here is done by Python's own loops.
    return dict(zip(map(external_id, by_request), map(count, by_request.values()), strict=True))


def _accepted(decide: Decisions) -> Any:
    def wrap(original: Any) -> Any:
        def sample(self: Any, hidden: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(self, hidden, input_batch, *args, **kwargs)
            names = list(map(external_id, input_batch.req_ids))
            _, sampled, rejected, *_ = output
            decide(
                "acceptance",
                {
                    "sampled": dict(zip(names, sampled.tolist(), strict=False)),
                    "rejected": dict(zip(names, rejected.tolist(), strict=False)),
                },
            )
            return output

        return sample

    return wrap


def _dispatched(context: Context, decide: Decisions) -> str:
    def wrap(original: Any) -> Any:
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            batch = output[0]
            decide(
                "batch",
                {
                    "graph": batch.cg_mode.name,
                    "tokens": int(batch.num_tokens),
                    "requests": None if batch.num_reqs is None else int(batch.num_reqs),
                },
            )
            return output

        return dispatch

    context.wrap("model_runner.dispatch", Layer.RECORDER, wrap)
    return context.hooks.table["model_runner.dispatch"].target


def _drafted(context: Context, decide: Decisions) -> str:
    """Watch the speculator that this model runner has, whichever class it is of."""
    seam = context.hooks.table["speculator.propose"]
    found = seams.locate(seam)
    if not found.ok:
        raise seams.SeamMovedError(f"speculator.propose ({seam.target}): found {found.found}")
    speculator = getattr(context.model_runner, "speculator", None)
    if speculator is None:
        return "no speculator, so that there is nothing to watch"
    kind = type(speculator)

    def propose(*args: Any, **kwargs: Any) -> Any:
        tokens = kwargs.get("num_speculative_tokens")
        tokens = speculator.num_speculative_steps if tokens is None else tokens
        decide("draft", {"run": True, "tokens": int(tokens)})
        # Looked up at each call: a fault may stand there by now.
        return kind.propose(speculator, *args, **kwargs)

    speculator.propose = propose
    context.on_end(lambda: vars(speculator).pop("propose", None))
    return f"{kind.__module__}:{kind.__qualname__}.propose"
