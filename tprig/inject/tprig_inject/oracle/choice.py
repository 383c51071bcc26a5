"""Which calls of a run are captured: by number, by step, by content, and at most so many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

MIB = 1 << 20

TRAITS = (
    *("accepted", "recovered", "bonus", "placeholder"),
    *("greedy", "random", "mixed", "probabilistic", "mask"),
    *("chunked", "ties", "wide", "top_p", "min_p"),
    *("penalties", "allowed", "bias", "min_tokens", "bad_words", "prefill"),
)
"""What a call can hold; `new` as content means any of these that no call kept so far holds."""


class ChoiceError(ValueError):
    """The options of the recorder cannot be meant."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The options of the recorder, as in `oracle?most=8&content=accepted+bonus`.

    Attributes:
        every: consider each N-th call.
        steps: consider the calls of these model steps alone; empty for all.
        content: keep calls that hold all of these traits; `new` for one not held before.
        most: keep at most so many calls of a run.
        call_bytes: keep no call with larger inputs.
        run_bytes: keep no call once so much of a run is kept.
        shared_bytes: above this only rank 0 keeps tensors, the others keep digests of theirs; and
            so large processed logits are kept as a digest by all.
    """

    every: int = 1
    steps: frozenset[int] = frozenset()
    content: frozenset[str] = frozenset()
    most: int = 8
    call_bytes: int = 512 * MIB
    run_bytes: int = 1024 * MIB
    shared_bytes: int = 16 * MIB

    def considers(self, number: int, step: int, kept: int) -> bool:
        """True when the call may be kept, from what is known before it.

        Args:
            number: calls of this run before it.
            step: the model step it belongs to.
            kept: calls kept so far.
        """
        in_steps = not self.steps or step in self.steps
        return kept < self.most and in_steps and number % self.every == 0

    def too_much(self, size_bytes: int, kept_bytes: int) -> str | None:
        """Why a call of that size is not kept, when so much of the run is; None when it may be."""
        if size_bytes > self.call_bytes:
            return f"it holds {size_bytes} bytes; at most {self.call_bytes} are kept of a call"
        if kept_bytes + size_bytes > self.run_bytes:
            return (
                f"it holds {size_bytes} bytes, and {kept_bytes} are kept of this run; at most "
                f"{self.run_bytes} are"
            )
        return None

    def keeps(self, traits: frozenset[str], seen: frozenset[str]) -> bool:
        """True when the call is kept, from what it turned out to hold."""
        if "new" in self.content and not traits - seen:
            return False
        return self.content - {"new"} <= traits


def parse(options: str) -> Choice:
    """The choice that the options of a recorder's name describe.

    Raises:
        ChoiceError: for an unknown option, or a value that cannot be meant.
    """
    given = parse_qs(options, keep_blank_values=True)
    fields: dict[str, Any] = {}
    for name, values in given.items():
        if name not in Choice.__dataclass_fields__:
            known = ", ".join(Choice.__dataclass_fields__)
            raise ChoiceError(f"unknown option {name!r} of the oracle: expected one of {known}")
        fields[name] = _value(name, values[-1])
    return Choice(**fields)


def _value(name: str, text: str) -> Any:
    # A plus sign in a query stands for a blank.
    words = frozenset(text.replace(",", " ").split())
    if name == "content":
        if unknown := sorted(words - {*TRAITS, "new"}):
            raise ChoiceError(
                f"unknown content {unknown} of the oracle: expected some of {', '.join(TRAITS)}"
            )
        return words
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = [-1]
    least = 0 if name in ("steps", "shared_bytes") else 1
    if not numbers or min(numbers) < least or (name != "steps" and len(numbers) > 1):
        raise ChoiceError(f"option {name} of the oracle: expected a number from {least}: {text!r}")
    return frozenset(numbers) if name == "steps" else numbers[0]


def traits(tensors: Mapping[str, Any], flags: Mapping[str, Any]) -> frozenset[str]:
    """What a captured call holds, by the names of `TRAITS`.

    Args:
        tensors: inputs and outputs of the call, CPU tensors.
        flags: its flags.
    """
    held = {
        **_decisions(tensors),
        **_parameters(tensors, flags["vocab_size"]),
        "probabilistic": "draft_logits" in tensors,
        "mask": "mask_counts" in tensors,
        "chunked": flags["chunks"] > 1,
        "ties": _ties(tensors),
    }
    return frozenset(name for name, holds in held.items() if holds)


def _decisions(tensors: Mapping[str, Any]) -> dict[str, bool]:
    bounds, verified = tensors["cu_num_logits"], tensors["num_verified"]
    drafts, accepted = bounds.diff() - 1, verified - 1
    placeholder = _placeholders(tensors)
    return {
        "accepted": bool((accepted > 0).any()),
        "recovered": bool(((accepted < drafts) & ~placeholder).any()),
        "bonus": bool(((accepted == drafts) & (drafts > 0)).any()),
        "placeholder": bool(placeholder.any()),
        "prefill": bool((tensors["num_sampled"] < verified).any()),
    }


def _placeholders(tensors: Mapping[str, Any]) -> Any:
    """`[R]`: whether the drafts are none, since the request is within its prefill."""
    bounds, prefill = tensors["cu_num_logits"].long(), tensors["prefill_len"]
    first = tensors["positions"][tensors["logits_indices"][bounds[:-1]]]
    return (first < prefill) & (bounds.diff() > 1)


def _parameters(tensors: Mapping[str, Any], vocab_size: int) -> dict[str, bool]:
    temperature, top_k = tensors["temperature"], tensors["top_k"]
    greedy = bool((temperature == 0).any())
    random = bool((temperature != 0).any())
    return {
        "greedy": greedy,
        "random": random,
        "mixed": greedy and random,
        "wide": bool(((top_k > 2048) & (top_k < vocab_size)).any()),
        "top_p": bool((tensors["top_p"] < 1).any()),
        "min_p": bool((tensors["min_p"] > 0).any()),
        "penalties": bool(tensors["use_penalty"].any()),
        "allowed": bool((tensors["num_allowed_token_ids"] > 0).any()),
        "bias": bool((tensors["num_logit_bias"] > 0).any()),
        "min_tokens": bool((tensors["num_stop_token_ids"] > 0).any()),
        "bad_words": bool((tensors["num_bad_words"] > 0).any()),
    }


def _ties(tensors: Mapping[str, Any]) -> bool:
    """Whether a row kept more tokens than its top-k: tokens that are tied at the edge."""
    kept = (tensors["processed_logits"] > -float("inf")).sum(dim=1)
    rows = tensors["cu_num_logits"].long().diff()
    top_k = tensors["top_k"].repeat_interleave(rows)
    return bool((kept > top_k).any())
