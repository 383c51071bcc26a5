"""Faults in what a single rank does, or in what ranks make of each other's parts.

Where one rank leaves out or swaps a collective its peers wait for it, and the engine is lost.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tprig_inject.faults.base import CAPTURED, LOST, PARITY, Fault, Once

RANK = 1
"""The rank in the tensor-parallel group that goes wrong."""
STEPS_BEFORE = 2
"""Steps that are left alone, so that it is known what ranks usually do."""


def _group() -> Any:
    from vllm.distributed.parallel_state import get_tp_group

    return get_tp_group()


def _is_wrong_one() -> bool:
    return bool(_group().rank_in_group == RANK)


def _due(once: Once) -> bool:
    return not once.spent and once.context.step >= STEPS_BEFORE and _is_wrong_one()


# --- collectives of the drafter ------------------------------------------------------------------

Gather = Callable[[Any], Any]
"""Takes this rank's part of the logits, returns the whole of them."""


def _at_drafter_s_gather(once: Once, instead: Callable[[Gather, Any], Any]) -> None:
    """Do something else on one rank when it comes to the drafter's first gather of a step."""
    gathered: list[int] = []

    def wrap(original: Any) -> Any:
        def gather(self: Any, logits: Any) -> Any:
            # The first gather of a step is that of the target's logits.
            if not gathered or gathered[-1] != once.context.step:
                gathered.append(once.context.step)
                return original(self, logits)
            if not _due(once):
                return original(self, logits)
            return instead(partial(original, self), logits)

        return gather

    once.wrap("logits_processor.gather", wrap)


def _gather_skipped(once: Once) -> None:
    """One rank takes its part of the first drafted logits for the whole, and gathers nothing."""

    def instead(_: Gather, logits: Any) -> Any:
        once.strike("the first gather of the drafter")
        return _repeated(logits)

    _at_drafter_s_gather(once, instead)


def _repeated(logits: Any) -> Any:
    import torch

    return torch.cat([logits] * _group().world_size, dim=-1)


def _gather_padded(once: Once) -> None:
    """One rank gathers a row more than it has."""

    def instead(gather: Gather, logits: Any) -> Any:
        from torch.nn.functional import pad

        once.strike("a row more in the first gather of the drafter")
        return gather(pad(logits, (0, 0, 0, 1)))[: len(logits)]

    _at_drafter_s_gather(once, instead)


def _gather_cast(once: Once) -> None:
    """One rank gathers its part in another element type."""

    def instead(gather: Gather, logits: Any) -> Any:
        once.strike("the first gather of the drafter in float64")
        return gather(logits.double()).to(logits.dtype)

    _at_drafter_s_gather(once, instead)


def _gather_doubled(once: Once) -> None:
    """One rank gathers twice."""

    def instead(gather: Gather, logits: Any) -> Any:
        once.strike("the first gather of the drafter twice")
        gather(logits)
        return gather(logits)

    _at_drafter_s_gather(once, instead)


def _gather_moved(once: Once) -> None:
    """One rank gathers before the last all-reduce of the drafter instead of after it.

    Both wait in the first of the two, so that what each would have issued next is not known.
    """
    rows: list[Any] = []
    counted = [-1, 0]
    moved: list[bool] = []

    def wrap_gather(original: Any) -> Any:
        def gather(self: Any, logits: Any) -> Any:
            if counted[0] != once.context.step:
                counted[:] = [once.context.step, 0]
                return original(self, logits)
            if moved:
                moved.clear()
                return _repeated(logits)
            rows[:] = [logits] if counted[1] <= OF_A_LAYER else rows
            return original(self, logits)

        return gather

    def wrap_reduce(original: Any) -> Any:
        def all_reduce(part: Any) -> Any:
            counted[1] += counted[0] == once.context.step
            last = counted[0] == once.context.step and counted[1] == OF_A_LAYER
            if last and rows and _due(once):
                once.strike("the first gather of the drafter before its last all-reduce")
                moved.append(True)
                _group().all_gather(rows[0])
            return original(part)

        return all_reduce

    once.wrap("logits_processor.gather", wrap_gather)
    once.wrap("linear.all_reduce", wrap_reduce)


OF_A_LAYER = 2
"""All-reduces of one layer: behind the attention, and behind the MLP."""


# --- decisions -----------------------------------------------------------------------------------


def _draft_shorter(once: Once) -> None:
    """One rank drafts a token less than its peers, as if it were nearer to its limits."""

    def wrap(original: Any) -> Any:
        def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
            state = self.execute_model_state
            if state is not None and state.num_spec_tokens_to_schedule > 1 and _due(once):
                fewer = state.num_spec_tokens_to_schedule - 1
                once.strike(f"{fewer} tokens drafted instead of {fewer + 1}")
                self.execute_model_state = state._replace(num_spec_tokens_to_schedule=fewer)
            return original(self, *args, **kwargs)

        return sample_tokens

    once.wrap("model_runner.sample_tokens", wrap)


def _other_backend(once: Once) -> None:
    """One rank does not take the all-reduce that its peers take for the same tensor."""

    def wrap(original: Any) -> Any:
        def should_custom_ar(self: Any, tensor: Any) -> bool:
            chosen = bool(original(self, tensor))
            if chosen and _due(once):
                once.strike("no custom all-reduce on this rank")
                return False
            return chosen

        return should_custom_ar

    once.wrap("custom.should_custom_ar", wrap)


# --- processes -----------------------------------------------------------------------------------


def _signalled(number: signal.Signals, once: Once, *, everywhere: bool = False) -> None:
    def wrap(original: Any) -> Any:
        def gather(self: Any, logits: Any) -> Any:
            frozen = everywhere and not once.spent and once.context.step >= STEPS_BEFORE
            if frozen or _due(once):
                once.strike(number.name)
                os.kill(os.getpid(), number)
            return original(self, logits)

        return gather

    once.wrap("logits_processor.gather", wrap)


# --- values --------------------------------------------------------------------------------------


def _gather_reversed(once: Once, *, everywhere: bool) -> None:
    """Ranks' parts are put together in the other order: on one rank once, or on all of them."""

    def wrap(original: Any) -> Any:
        def gather(self: Any, logits: Any) -> Any:
            whole = original(self, logits)
            if not (everywhere or _due(once)):
                return whole
            if not once.spent:
                once.strike("the parts of the logits in the other order")
            return _turned(whole)

        return gather

    once.wrap("logits_processor.gather", wrap)


def _turned(whole: Any) -> Any:
    import torch

    return torch.cat(whole.chunk(_group().world_size, dim=-1)[::-1], dim=-1).contiguous()


def _weights_stale(once: Once) -> None:
    """One rank keeps its shard of the LM head as it was before an update.

    The weights themselves may have been packed for this processor's products, so that nothing reads
    them any more: the part of the logits is what the other weights would have made of it.
    """

    def wrap(original: Any) -> Any:
        def gather(self: Any, logits: Any) -> Any:
            if not _is_wrong_one():
                return original(self, logits)
            if not once.spent:
                once.strike(f"the shard of the LM head times {STALE}")
            return original(self, logits * STALE)

        return gather

    once.wrap("logits_processor.gather", wrap)


STALE = 0.875


FAULTS: Mapping[str, Fault] = {
    "gather-reversed-on-one-rank": Fault(
        plant=lambda once: _gather_reversed(once, everywhere=False),
        resembles="a rank that puts the parts of a gather together in the order of their arrival",
        anomaly="value.divergence",
        judges=("rank_order",),
        sizes=(2,),
    ),
    "gather-reversed-in-a-call": Fault(
        plant=lambda once: _gather_reversed(once, everywhere=False),
        resembles="a gather whose result is not the same on every rank, seen by its sampler",
        anomaly="oracle.rank-agreement",
        judges=CAPTURED,
        sizes=(2,),
    ),
    "gather-reversed": Fault(
        plant=lambda once: _gather_reversed(once, everywhere=True),
        resembles="shards of the vocabulary in another order than the ranks",
        anomaly="output.tp-parity",
        judges=PARITY,
        sizes=(2,),
    ),
    "weights-stale": Fault(
        plant=_weights_stale,
        resembles="a weight update that did not reach one rank",
        anomaly="output.tp-parity",
        judges=PARITY,
        sizes=(2,),
    ),
    "gather-skipped": Fault(
        plant=_gather_skipped,
        resembles="a branch around a collective that one rank takes and its peers do not",
        anomaly="collective.missing",
        judges=LOST,
        sizes=(2,),
        lethal=True,
    ),
    "gather-moved": Fault(
        plant=_gather_moved,
        resembles="two collectives that one rank issues the other way round",
        anomaly="collective.type",
        judges=LOST,
        sizes=(2,),
        lethal=True,
    ),
    "gather-padded": Fault(
        plant=_gather_padded,
        resembles="a batch that one rank pads otherwise than its peers",
        anomaly="collective.size",
        judges=LOST,
        sizes=(2,),
        lethal=True,
    ),
    "gather-cast": Fault(
        plant=_gather_cast,
        resembles="a cast that one rank makes before a collective, and its peers after it",
        anomaly="collective.dtype",
        judges=LOST,
        sizes=(2,),
        lethal=True,
    ),
    "gather-doubled": Fault(
        plant=_gather_doubled,
        resembles="a retry, or a warm-up, that one rank makes alone",
        anomaly="collective.missing",
        judges=LOST,
        sizes=(2,),
        lethal=True,
    ),
    "draft-shorter-on-one-rank": Fault(
        plant=_draft_shorter,
        resembles="a budget of drafts that each rank settles by itself, near max_model_len",
        anomaly="decision.divergence",
        judges=LOST,
        sizes=(2,),
        lethal=True,
    ),
    "backend-of-one-rank": Fault(
        plant=_other_backend,
        resembles="a rank that finds its buffer unfit for the all-reduce that its peers take",
        anomaly="collective.backend",
        judges=LOST,
        sizes=(2,),
        lethal=True,
        cuda_only=True,
    ),
    "rank-stalls": Fault(
        plant=partial(_signalled, signal.SIGSTOP),
        resembles="a rank that is stuck outside of any collective",
        anomaly="rank.stall",
        judges=LOST,
        sizes=(2,),
        lethal=True,
    ),
    "ranks-freeze": Fault(
        plant=partial(_signalled, signal.SIGSTOP, everywhere=True),
        resembles="ranks that all wait at the same place for something outside of them",
        anomaly="rank.stall",
        judges=LOST,
        sizes=(2,),
        lethal=True,
    ),
    "rank-dies": Fault(
        plant=partial(_signalled, signal.SIGKILL),
        resembles="a worker that the kernel kills while its peers wait in a collective",
        anomaly="rank.stall",
        judges=LOST,
        sizes=(2,),
        lethal=True,
    ),
}
