"""Faults in how outputs reach the host while the next step is under way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tprig_inject.faults import masks
from tprig_inject.faults.base import Fault, Once


def _late_mutation(once: Once) -> None:
    """A mask is written again after it was handed to `AsyncOutput`."""
    handed: list[Any] = []

    def wrap_sample(original: Any) -> Any:
        def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(self, *args, **kwargs)
            handed[:] = [output[0]]
            return output

        return sample

    def wrap_propose(original: Any) -> Any:
        def propose(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not once.spent and handed and handed[0].sampling_mask_tensors is not None:
                masks.swap(handed[0], once)
            return original(self, *args, **kwargs)

        return propose

    once.wrap("model_runner.sample", wrap_sample)
    once.wrap("model_runner.postprocess_sampled", wrap_propose)


def _delivered_late(once: Once) -> None:
    """The masks of one step are delivered with the tokens that a request has in the next."""
    before: dict[str, list[list[int]]] = {}

    def wrap(original: Any) -> Any:
        def get_output(self: Any) -> Any:
            output = original(self)
            if not once.spent and output.sampling_masks is not None:
                now = _by_request(output)
                late = next((name for name in now if _fits(before.get(name), now[name])), None)
                if late is not None:
                    masks_now = {**now, late: before[late]}
                    output.sampling_masks = _listed(output.sampling_masks, list(masks_now.values()))
                    once.strike(f"batch row {list(now).index(late)}: masks of the step before")
                before.clear()
                before.update(now)
            return output

        return get_output

    once.wrap("async_output.get_output", wrap)


def _by_request(output: Any) -> dict[str, list[list[int]]]:
    """Each request's supports in this step."""
    lists, counts = output.sampling_masks, list(map(len, output.sampled_token_ids))
    return {
        name: lists.slice_request(index, counts[index]).to_nested_list() if counts[index] else []
        for index, name in enumerate(output.req_ids)
    }


def _fits(before: list[list[int]] | None, now: list[list[int]]) -> bool:
    """As many supports, and another one first."""
    return bool(before) and len(before or ()) == len(now) and (before or now)[0] != now[0]


def _listed(like: Any, supports: list[list[list[int]]]) -> Any:
    """The supports of all requests as vLLM hands them on."""
    import numpy as np

    flat = [support for request in supports for support in request]
    tokens = [token for support in flat for token in support]
    return like._replace(
        token_ids=np.array(tokens, dtype=like.token_ids.dtype),
        offsets=np.cumsum([0, *map(len, flat)]),
        cu_num_generated_tokens=np.cumsum([0, *map(len, supports)]).tolist(),
    )


SLEEP_CYCLES = 200_000_000
"""Long enough for the host to come first: about a tenth of a second."""


def _read_too_early(once: Once) -> None:
    """The host reads its copy before the event behind it."""

    def wrap_init(original: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if not once.spent:
                _delay(args, kwargs)
            original(self, *args, **kwargs)

        return init

    def wrap_get(original: Any) -> Any:
        def get_output(self: Any) -> Any:
            if not once.spent and not self.copy_event.query():
                once.strike("the host's copy is read before its event")
                self.copy_event = _Passed()
            return original(self)

        return get_output

    once.wrap("async_output.init", wrap_init)
    once.wrap("async_output.get_output", wrap_get)


class _Passed:
    """An event that nobody waits for."""

    def synchronize(self) -> None:
        """Return at once."""


def _delay(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Keep the stream of the copies busy for a while."""
    import torch

    stream = kwargs.get("copy_stream", args[4] if len(args) > 4 else None)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)


def _written_while_copied(once: Once) -> None:
    """The buffer of a mask is written again while it is being copied to the host."""

    def wrap(original: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if not once.spent:
                _delay(args, kwargs)
            original(self, *args, **kwargs)
            sampled = kwargs.get("sampler_output", args[1] if len(args) > 1 else None)
            if not once.spent and sampled is not None and sampled.sampling_mask_tensors is not None:
                masks.swap(sampled, once)

        return init

    once.wrap("async_output.init", wrap)


FAULTS: Mapping[str, Fault] = {
    "copy-mutated-late": Fault(
        plant=_late_mutation,
        resembles="a tensor written in place after it was handed to the asynchronous output",
        anomaly="mask.row-alignment",
    ),
    "copy-delivered-late": Fault(
        plant=_delivered_late,
        resembles="the output of step n delivered as that of step n+1",
        anomaly="mask.row-alignment",
    ),
    "copy-read-too-early": Fault(
        plant=_read_too_early,
        resembles="a host copy that is read before the event behind it",
        anomaly="output.acceptance",
        cuda_only=True,
    ),
    "copy-source-reused": Fault(
        plant=_written_while_copied,
        resembles="a buffer that is used again while the copy stream still reads it",
        anomaly="mask.row-alignment",
        cuda_only=True,
    ),
}
