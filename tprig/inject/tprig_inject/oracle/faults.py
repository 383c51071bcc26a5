"""Known kinds of bugs, planted in the samplers that a replay builds: each must be found out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tprig_inject.hooks import Hooks, Layer


def _positions_shifted(original: Any) -> Any:
    """The random draws of verification and recovery are those of the next position."""

    def verify(
        self: Any, logits: Any, draft_logits: Any, draft_sampled: Any, pos: Any, *rest: Any
    ) -> Any:
        return original(self, logits, draft_logits, draft_sampled, pos + 1, *rest)

    return verify


def _logits_written(original: Any) -> Any:
    """The raw logits are processed in place, so that whoever reads them next finds others."""

    def verify(self: Any, logits: Any, *rest: Any) -> Any:
        output = original(self, logits, *rest)
        logits.copy_(output[0])
        return output

    return verify


def _draws(original: Any) -> Any:
    """Something draws from the device's generator, which nothing else of the call does."""
    import torch

    def verify(self: Any, *rest: Any) -> Any:
        torch.rand(1)
        return original(self, *rest)

    return verify


def _unstable(original: Any) -> Any:
    """Every other call counts one token less: an uninitialised or raced count."""
    calls = [0]

    def verify(self: Any, *rest: Any) -> Any:
        processed, sampled, num_sampled = original(self, *rest)
        calls[0] += 1
        if calls[0] % 2 == 0:
            num_sampled = num_sampled.clamp(min=2) - 1
        return processed, sampled, num_sampled

    return verify


def _support_cut(original: Any) -> Any:
    """A support is taken with its first token missing."""

    def from_logits(cls: Any, logits: Any, *rest: Any) -> Any:
        cut = logits.clone()
        cut.scatter_(1, (cut > -float("inf")).int().argmax(dim=1, keepdim=True), -float("inf"))
        return original(cls, cut, *rest)

    return from_logits


FAULTS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "positions-shifted": ("rejection_sampler.verify", _positions_shifted),
    "logits-written": ("rejection_sampler.verify", _logits_written),
    "generator-drawn": ("rejection_sampler.verify", _draws),
    "counts-unstable": ("rejection_sampler.verify", _unstable),
    "support-cut": ("sampling_mask.from_logits", _support_cut),
}
"""Name -> the seam at which it is planted, and its wrapper."""


def plant(hooks: Hooks, name: str) -> None:
    """Put a fault in place for as long as the process lives.

    Raises:
        KeyError: for a name that is not in the table.
        SeamMovedError: if its seam does not look as expected.
    """
    seam, wrap = FAULTS[name]
    hooks.add(seam, Layer.FAULT, wrap)
