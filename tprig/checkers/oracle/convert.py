"""From the tensors of a captured call to what the reference reads."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tprig.checkers.reference import (
    LogprobsMode,
    Request,
    SamplerCall,
    SamplerResult,
    TieRule,
    Verification,
)
from tprig.evidence import CapturedCall
from tprig.history import Arrays

TIES: Mapping[str, TieRule] = {"all": TieRule.KEEP_ALL, "exact": TieRule.EXACTLY_K}
"""`top_k_ties` of a call or a replay -> the reference's rule."""


def widened(call: CapturedCall, tensors: Arrays) -> dict[str, NDArray[Any]]:
    """The tensors with narrow floats as float32, which is exact."""
    dtypes = {t.name: t.dtype for t in call.tensors}
    return {name: _widened(array, dtypes.get(name)) for name, array in tensors.items()}


def _widened(array: NDArray[Any], dtype: str | None) -> NDArray[Any]:
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if dtype == "float16" else array


def sampler_call(call: CapturedCall, tensors: Arrays, *, replay: bool) -> SamplerCall:
    """The call as the reference reads it.

    Args:
        call: validated by `bounds.require_bounds`, with `tensors`.
        tensors: by name, as captured.
        replay: whether supports were returned.
    """
    held, flags = widened(call, tensors), call.flags
    rows = held["logits_indices"]
    return SamplerCall(
        logits=held["logits"],
        input_ids=held["input_ids"][rows].astype(np.int64),
        positions=held["positions"][rows].astype(np.int64),
        cu_num_logits=held["cu_num_logits"].astype(np.int64),
        idx_mapping=held["idx_mapping"].astype(np.int64),
        expanded_idx_mapping=held["expanded_idx_mapping"].astype(np.int64),
        expanded_local_pos=held["expanded_local_pos"].astype(np.int64),
        requests=tuple(_requests(call, held)),
        num_speculative_steps=flags.num_speculative_steps,
        tie_rule=TIES[flags.top_k_ties],
        draft_logits=held.get("draft_logits"),
        invalid_drafts=held.get("invalid_drafts"),
        verification=Verification(flags.verification),
        synthetic_rates=held.get("synthetic_conditional_rates"),
        logprobs_mode=LogprobsMode(flags.logprobs_mode),
        fp64_gumbel=flags.use_fp64_gumbel,
        max_chunk_logits=flags.chunk_logits if flags.chunks > 1 else None,
        replay=replay,
    )


def _requests(call: CapturedCall, held: Mapping[str, NDArray[Any]]) -> list[Request]:
    penalised = np.cumsum(held["use_penalty"]) - 1
    return [_request(i, int(penalised[i]), held, call) for i in range(len(call.requests))]


def _request(i: int, bins: int, held: Mapping[str, NDArray[Any]], call: CapturedCall) -> Request:
    prompt_mask, output_counts = _bins(bins, held, call.flags.vocab_size)
    penalised = bool(held["use_penalty"][i])
    return Request(
        temperature=float(held["temperature"][i]),
        top_k=int(held["top_k"][i]),
        top_p=float(held["top_p"][i]),
        min_p=float(held["min_p"][i]),
        seed=int(held["seeds"][i]),
        num_logprobs=int(held["num_logprobs"][i]),
        prefill_len=int(held["prefill_len"][i]),
        seq_len=int(held["seq_lens"][i]),
        min_len=int(held["min_lens"][i]),
        repetition_penalty=float(held["repetition_penalty"][i]),
        frequency_penalty=float(held["frequency_penalty"][i]),
        presence_penalty=float(held["presence_penalty"][i]),
        prompt_mask=prompt_mask if penalised else None,
        output_counts=output_counts if penalised else None,
        allowed_token_ids=_listed(held, "allowed_token_ids", "num_allowed_token_ids", i),
        bias_token_ids=_listed(held, "logit_bias_token_ids", "num_logit_bias", i),
        bias=_listed(held, "logit_bias", "num_logit_bias", i),
        stop_token_ids=_listed(held, "stop_token_ids", "num_stop_token_ids", i),
        restore_when_all_masked=bool(
            "restore_when_all_masked" in held and held["restore_when_all_masked"][i]
        ),
        bad_words=_bad_words(held, i),
        output_token_ids=_emitted(held, i),
    )


def _bins(
    row: int, held: Mapping[str, NDArray[Any]], vocab_size: int
) -> tuple[NDArray[np.bool_] | None, NDArray[np.int64] | None]:
    if "output_bin_counts" not in held:
        return None, None
    packed = held["prompt_bin_mask"][row]
    bits = np.unpackbits(packed.view(np.uint8), count=vocab_size, bitorder="little")
    return bits.astype(np.bool_), held["output_bin_counts"][row].astype(np.int64)


def _listed(held: Mapping[str, NDArray[Any]], name: str, count: str, i: int) -> NDArray[Any] | None:
    number = int(held[count][i])
    if not number:
        return None
    values = held[name][i, :number]
    return values if values.dtype.kind == "f" else values.astype(np.int64)


def _bad_words(held: Mapping[str, NDArray[Any]], i: int) -> tuple[NDArray[np.int64], ...]:
    number = int(held["num_bad_words"][i])
    if not number:
        return ()
    offsets = held["bad_word_offsets"][i, : number + 1]
    words = held["bad_word_token_ids"][i].astype(np.int64)
    return tuple(words[low:high] for low, high in pairwise(offsets.tolist()))


def _emitted(held: Mapping[str, NDArray[Any]], i: int) -> NDArray[np.int64] | None:
    if "all_token_ids" not in held:
        return None
    span = slice(int(held["prompt_len"][i]), int(held["total_len"][i]))
    return held["all_token_ids"][i, span].astype(np.int64)


def sampler_result(call: CapturedCall, tensors: Arrays) -> SamplerResult:
    """What the call returned, as the reference reads it.

    Args:
        call: the captured call.
        tensors: outputs by name, of production or of a replay.
    """
    held = widened(call, tensors)
    verified = held["num_verified"]
    sampled = np.zeros((len(verified), call.flags.num_speculative_steps + 1), dtype=np.int64)
    sampled[np.arange(sampled.shape[1]) < verified[:, None]] = held["sampled"]
    ids, ranks = held.get("logprob_token_ids"), held.get("ranks")
    return SamplerResult(
        sampled=sampled,
        num_sampled=held["num_sampled"].astype(np.int64),
        num_rejected=held["num_rejected"].astype(np.int64),
        logprob_token_ids=None if ids is None else ids.astype(np.int64),
        logprobs=held.get("logprobs"),
        ranks=None if ranks is None else ranks.astype(np.int64),
        supports=supports(held, call.flags.vocab_size),
        processed_logits=held.get("processed_logits"),
    )


def supports(held: Arrays, vocab_size: int) -> tuple[tuple[NDArray[np.int64], ...], ...] | None:
    """`[R][num_verified]` token ids, as vLLM itself would list them; None without a mask.

    Args:
        held: outputs by name, whose counts were validated.
        vocab_size: how many bits of a packed row count.
    """
    if "mask_counts" not in held:
        return None
    verified = held["num_verified"]
    counts = held["mask_counts"].reshape(len(verified), -1)
    live = np.arange(counts.shape[1]) < verified[:, None]
    flat = held["mask_token_ids"].astype(np.int64)
    rows, width = counts[live], int(held["mask_width"][0])
    kept = np.split(flat, np.cumsum(np.minimum(rows, width))[:-1])
    bits = np.unpackbits(held["mask_bits"], axis=1, count=vocab_size, bitorder="little")
    ids = [
        kept[row] if rows[row] <= width else np.flatnonzero(bits[row]).astype(np.int64)
        for row in range(len(rows))
    ]
    ends = np.cumsum(verified)
    return tuple(tuple(ids[end - n : end]) for n, end in zip(verified, ends, strict=True))
