"""Faults in verification and recovery: what is accepted, and what is drawn in its stead.

Each makes the call again with something wrong, and takes from it what became of one request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tprig_inject.faults import masks
from tprig_inject.faults.base import CAPTURED, REPLAY, Fault, Once

_NAMES = (
    "target_logits",
    "draft_logits",
    "draft_sampled",
    "cu_num_logits",
    "pos",
    "idx_mapping",
    "expanded_idx_mapping",
    "expanded_local_pos",
    "temperature",
    "seed",
)
DRAFT_NOISE = 1 << 30
"""vLLM's salt of the positions that drafters draw their noise at."""
CERTAIN = 1e4
"""A logit beside which no other one counts."""


@dataclass
class Verification:
    """One call of `rejection_sample`, which can be made again with other arguments."""

    original: Callable[..., Any]
    named: dict[str, Any]
    rest: tuple[Any, ...]
    options: dict[str, Any]
    sampled: Any
    """`[requests, K + 1]`: what the honest call sampled."""
    counts: Any
    """`[requests]`: how many of them."""

    @staticmethod
    def of(original: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Make the honest call."""
        named = dict(zip(_NAMES, args, strict=False))
        return Verification(
            original, named, args[len(_NAMES) :], options, *original(*args, **options)
        )

    def again(self, **changes: Any) -> tuple[Any, Any]:
        """What it samples with other arguments."""
        changed = {**self.named, **changes}
        arguments = (*(changed[name] for name in _NAMES), *self.rest)
        sampled, counts = self.original(*arguments, **self.options)
        return sampled, counts

    def requests(self) -> Iterator[Request]:
        """Those with drafts: a request within its prefill has none that could be accepted."""
        bounds, drafts = self.named["cu_num_logits"].tolist(), self.named["draft_sampled"].tolist()
        states, counts = self.named["idx_mapping"].tolist(), self.counts.tolist()
        for index, (low, high) in enumerate(pairwise(bounds)):
            if high - low > 1 and drafts[low + 1] >= 0:
                yield Request(index, states[index], low, drafts[low + 1 : high], counts[index])


@dataclass(frozen=True)
class Request:
    """One request of a verification.

    Attributes:
        index: its batch row.
        state: its row of the request states.
        row: its first row of logits.
        drafts: what was drafted.
        count: tokens that the honest call sampled.
    """

    index: int
    state: int
    row: int
    drafts: list[int]
    count: int

    @property
    def rejected(self) -> bool:
        """True when a draft was rejected."""
        return self.count <= len(self.drafts)

    @property
    def last(self) -> int:
        """The row of logits that the recovered or the bonus token was drawn from."""
        return self.row + self.count - 1


Wrong = Callable[[Verification], Iterator[tuple[Request, Any, Any]]]
"""Yields requests with what they sample when something is wrong: tokens, and how many."""


def _verified(wrong: Wrong) -> Callable[[Once], None]:
    def plant(once: Once) -> None:
        def wrap(original: Any) -> Any:
            def rejection_sample(*args: Any, **options: Any) -> Any:
                call = Verification.of(original, args, options)
                for request, sampled, counts in wrong(call) if not once.spent else ():
                    was = _told(call.sampled, call.counts, request)
                    call.sampled[request.index] = sampled[request.index]
                    call.counts[request.index] = counts[request.index]
                    now = _told(call.sampled, call.counts, request)
                    once.strike(f"batch row {request.index}: sampled {now} instead of {was}")
                    break
                return call.sampled, call.counts

            return rejection_sample

        once.wrap("rejection_sampler.rejection_sample", wrap)

    return plant


def _told(sampled: Any, counts: Any, request: Request) -> list[int]:
    tokens: list[int] = sampled[request.index, : int(counts[request.index])].tolist()
    return tokens


def _other_token(
    call: Verification, sampled: Any, counts: Any, wanted: Callable[[Request], bool]
) -> Iterator[tuple[Request, Any, Any]]:
    """Requests that accept as many drafts as they should, and then draw another token."""
    for request in call.requests():
        i, slot = request.index, request.count - 1
        same = int(counts[i]) == request.count
        if wanted(request) and same and int(sampled[i, slot]) != int(call.sampled[i, slot]):
            yield request, sampled, counts


# --- random draws ------------------------------------------------------------------------------


def _wrong_seed(call: Verification) -> Iterator[tuple[Request, Any, Any]]:
    """The random draws of one request are those of another seed."""
    drawn = call.again(seed=call.named["seed"] + 1)
    yield from _other_token(call, *drawn, lambda _: True)


def _position_after_rejection(once: Once) -> None:
    """After a rejection the random draws are those of the next position."""
    rejected: set[int] = set()

    def wrong(call: Verification) -> Iterator[tuple[Request, Any, Any]]:
        before = set(rejected)
        rejected.clear()
        rejected.update(request.state for request in call.requests() if request.rejected)
        drawn = call.again(pos=call.named["pos"] + 1)
        yield from _other_token(call, *drawn, lambda request: request.state in before)

    _verified(wrong)(once)


def _draft_noise(call: Verification) -> Iterator[tuple[Request, Any, Any]]:
    """A recovered token is drawn with the noise that its position was drafted with."""
    drawn = call.again(pos=call.named["pos"] + DRAFT_NOISE)
    yield from _other_token(call, *drawn, lambda request: request.rejected)


# --- acceptance --------------------------------------------------------------------------------


def _zero_probability(call: Verification) -> Iterator[tuple[Request, Any, Any]]:
    """A draft token is accepted that the target gives no probability."""
    yield from _accepted(call, possible=False)


def _too_often(call: Verification) -> Iterator[tuple[Request, Any, Any]]:
    """A draft token is accepted although the accept test refuses it."""
    yield from _accepted(call, possible=True)


def _accepted(call: Verification, *, possible: bool) -> Iterator[tuple[Request, Any, Any]]:
    target = call.named["target_logits"].clone()
    changed = []
    for request in call.requests():
        if not request.rejected:
            continue
        token = request.drafts[request.count - 1]
        if token >= 0 and bool(target[request.last, token].isfinite()) is possible:
            target[request.last, token] = CERTAIN
            changed.append(request)
    if changed:
        sampled, counts = call.again(target_logits=target)
        for request in changed:
            if int(counts[request.index]) > request.count:
                yield request, sampled, counts


# --- what the last token is drawn from ----------------------------------------------------------


def _bonus_of_draft(call: Verification) -> Iterator[tuple[Request, Any, Any]]:
    """A bonus token is drawn from the drafter's last distribution, within the support."""
    target = call.named["target_logits"].clone()
    for request in call.requests():
        if not request.rejected:
            logits = call.named["draft_logits"][request.state, len(request.drafts) - 1]
            row = logits[: target.shape[1]].float() / call.named["temperature"][request.state]
            kept = target[request.last].isfinite()
            target[request.last] = row.masked_fill(~kept, -float("inf"))
    drawn = call.again(target_logits=target)
    yield from _other_token(call, *drawn, lambda request: not request.rejected)


def _not_residual(call: Verification) -> Iterator[tuple[Request, Any, Any]]:
    """A token is recovered from the target, with the refused draft still in it."""
    drafts = call.named["draft_sampled"].clone()
    for request in call.requests():
        if request.rejected:
            drafts[request.last + 1] = -1
    drawn = call.again(draft_sampled=drafts)
    yield from _other_token(call, *drawn, lambda request: request.rejected)


def _top_p_before_temperature(once: Once) -> None:
    """Top-p is taken of the probabilities that the logits have at temperature one."""

    def wrap(original: Any) -> Any:
        def apply(self: Any, logits: Any, mapping: Any, *args: Any, **kwargs: Any) -> Any:
            if once.spent:
                return original(self, logits, mapping, *args, **kwargs)
            scaled, states = logits.clone(), mapping.long()
            cold = logits * self.temperature.gpu[states].unsqueeze(1)
            output = original(self, logits, mapping, *args, **kwargs)
            other = original(self, cold, mapping, *args, **kwargs).isfinite()
            return _in_one_request(output, scaled.masked_fill(~other, -float("inf")), states, once)

        return apply

    once.wrap("sampling_states.apply_top_k_top_p", wrap)


def _in_one_request(output: Any, other: Any, states: Any, once: Once) -> Any:
    """The rows of the first request with drafts whose first row becomes another one."""
    mapping = states.tolist()
    for row in range(len(mapping) - 1):
        first = row == 0 or mapping[row - 1] != mapping[row]
        several = mapping[row + 1] == mapping[row]
        if first and several and not other[row].isfinite().equal(output[row].isfinite()):
            mine = states == mapping[row]
            once.strike(f"rows of logits from {row}: top-p before temperature")
            output[mine] = other[mine]
            return output
    return output


# --- what the call returns ---------------------------------------------------------------------


def _returned(alter: masks.Alter) -> Callable[[Once], None]:
    def plant(once: Once) -> None:
        def wrap(original: Any) -> Any:
            def call(self: Any, *args: Any, **kwargs: Any) -> Any:
                output = original(self, *args, **kwargs)
                if not once.spent:
                    alter(output, once)
                return output

            return call

        once.wrap("rejection_sampler.call", wrap)

    return plant


def _rejected_miscounted(output: Any, once: Once) -> None:
    """One more draft counts as rejected than was."""
    for request, (sampled, rejected) in enumerate(
        zip(output.num_sampled.tolist(), output.num_rejected.tolist(), strict=True)
    ):
        if sampled > 1:
            output.num_rejected[request] += 1
            once.strike(f"batch row {request}: {rejected + 1} rejected instead of {rejected}")
            return


FAULTS: Mapping[str, Fault] = {
    "seed-of-other-request": Fault(
        plant=_verified(_wrong_seed),
        resembles="a seed read from another slot of the request states",
        anomaly="oracle.tokens",
        judges=CAPTURED,
    ),
    "position-after-rejection": Fault(
        plant=_position_after_rejection,
        resembles="a position that is not set back by the tokens that were rejected",
        anomaly="oracle.tokens",
        judges=CAPTURED,
    ),
    "draft-noise-reused": Fault(
        plant=_verified(_draft_noise),
        resembles="a proposal and its recovery that share a vector of noise",
        anomaly="oracle.tokens",
        judges=CAPTURED,
        draft="probabilistic",
    ),
    "zero-probability-accepted": Fault(
        plant=_verified(_zero_probability),
        resembles="an acceptance that is drawn from rates and not from the target",
        anomaly="mask.membership",
        judges=REPLAY,
    ),
    "accepted-too-often": Fault(
        plant=_verified(_too_often),
        resembles="an accept test with a wrong ratio: the text no longer follows the target",
        anomaly="oracle.decisions",
        judges=CAPTURED,
    ),
    "accepted-too-often-probabilistic": Fault(
        plant=_verified(_too_often),
        resembles="an accept test that leaves out the draft's own probability",
        anomaly="oracle.decisions",
        judges=CAPTURED,
        draft="probabilistic",
    ),
    "bonus-of-draft": Fault(
        plant=_verified(_bonus_of_draft),
        resembles="a bonus token drawn from the draft's distribution",
        anomaly="oracle.tokens",
        judges=CAPTURED,
        draft="probabilistic",
    ),
    "recovered-from-target": Fault(
        plant=_verified(_not_residual),
        resembles="a recovery that does not take the refused draft out of the target",
        anomaly="oracle.tokens",
        judges=CAPTURED,
    ),
    "top-p-before-temperature": Fault(
        plant=_top_p_before_temperature,
        resembles="logits processors in another order: top-p before temperature",
        anomaly="oracle.reconstruction",
        judges=CAPTURED,
    ),
    "rejected-miscounted": Fault(
        plant=_returned(_rejected_miscounted),
        resembles="a number of rejected drafts that does not follow from what was sampled",
        anomaly="oracle.counts",
        judges=CAPTURED,
    ),
    "sampler-logprobs-swapped": Fault(
        plant=_returned(masks.logprobs_swapped),
        resembles="top logprobs gathered in another order than their token ids",
        anomaly="oracle.logprobs",
        judges=CAPTURED,
    ),
    "sampler-rank-off-by-one": Fault(
        plant=_returned(masks.rank_of_token),
        resembles="a ranks kernel that counts the token itself twice",
        anomaly="oracle.ranks",
        judges=CAPTURED,
    ),
}
