"""Faults that make one of two equal runs differ, in one number, at one stage of a model step.

They stand for what depends on time, threads or memory. Every rank is altered alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tprig_inject.faults.base import Fault, Once

STEPS_BEFORE = 1
"""Steps that are left alone: the runs are equal before they part."""


def _due(once: Once) -> bool:
    return not once.spent and once.context.step >= STEPS_BEFORE


def _nudge(once: Once, tensor: Any) -> None:
    """The first number becomes its neighbour: the next float, or the integer beside it."""
    import torch

    first = tensor[(0,) * tensor.dim()]
    if tensor.is_floating_point():
        first.copy_(torch.nextafter(first, torch.full_like(first, torch.inf)))
    else:
        first.bitwise_xor_(1)
    once.strike(f"the first number of a {tensor.dtype} of shape {list(tensor.shape)}")


def _module(once: Once, pattern: str) -> None:
    """Alter what a module of the target returns, before a recorder's hook sees it."""

    def forward(_module: Any, _args: Any, output: Any) -> None:
        if _due(once):
            _nudge(once, output[0] if isinstance(output, tuple) else output)

    for name, module in once.context.model_runner.model.named_modules():
        if re.search(pattern, name):
            once.context.on_end(module.register_forward_hook(forward, prepend=True).remove)
    once.arm()


def _local_logits(once: Once) -> None:
    """Alter what the LM head computes, which is gathered next."""
    method = once.context.model_runner.model.lm_head.quant_method
    original = method.apply

    def apply(*args: Any, **kwargs: Any) -> Any:
        logits = original(*args, **kwargs)
        if _due(once):
            _nudge(once, logits)
        return logits

    method.apply = apply
    once.context.on_end(lambda: vars(method).pop("apply", None))
    once.arm()


def _returned(once: Once, seam: str, pick: Callable[[Any], Any], least: int = 1) -> None:
    """Alter part of what is returned at a seam, if it has that many numbers."""

    def wrap(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            if _due(once):
                tensor = pick(output)
                if tensor is not None and tensor.numel() >= least:
                    _nudge(once, tensor)
            return output

        return call

    once.wrap(seam, wrap)


def _host_copy(once: Once) -> None:
    def wrap(original: Any) -> Any:
        def get_output(self: Any) -> Any:
            output = original(self)
            if _due(once) and any(output.sampled_token_ids):
                row = next(row for row in output.sampled_token_ids if row)
                row[0] ^= 1
                once.strike("the first token")
            return output

        return get_output

    once.wrap("async_output.get_output", wrap)


def _sampled(output: Any) -> Any:
    counts = output[0].num_sampled
    return output[0].sampled_token_ids if int(counts[0]) else None


def _masked(output: Any) -> Any:
    mask = output[0].sampling_mask_tensors
    return mask.token_ids if mask is not None and int(mask.counts[0]) else None


_STAGES: Mapping[str, Callable[[Once], None]] = {
    "embedding": partial(_module, pattern=r"embed_tokens$"),
    "layer.1": partial(_module, pattern=r"(?:^|\.)layers\.1$"),
    "local_logits": _local_logits,
    "gathered_logits": partial(_returned, seam="logits_processor.gather", pick=lambda out: out),
    "processed_logits": partial(
        _returned, seam="rejection_sampler.verify", pick=lambda output: output[0]
    ),
    "verification": partial(_returned, seam="model_runner.sample", pick=_sampled),
    "mask": partial(_returned, seam="model_runner.sample", pick=_masked),
    "host_copy": _host_copy,
}
_GATHERED = {"local_logits", "gathered_logits"}
"""Stages that there are where logits are gathered: one rank has them whole."""

FAULTS: Mapping[str, Fault] = {
    f"drift-{stage}": Fault(
        plant=plant,
        resembles="a number that depends on time, on the order of threads or on memory",
        anomaly="determinism.stage",
        sizes=(2,) if stage in _GATHERED else (1, 2),
        suite="determinism",
    )
    for stage, plant in _STAGES.items()
}
"""`drift-` and the stage that must be named -> its fault."""
