"""Turns vLLM's own outputs, logprobs and sampling parameters into records."""

from __future__ import annotations

import dataclasses
import enum
from types import SimpleNamespace
from typing import Any

import torch
from tprig_inject import records
from vllm.logprobs import FlatLogprobs, append_logprobs_for_next_position
from vllm.outputs import CompletionOutput, RequestOutput, SamplingMask
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor
from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState

Row = dict[str, Any]


def emission(
    rows: list[Row] | None,
    *,
    token_ids: list[int],
    vocab_size: int,
    supports: list[list[int]] | None = None,
    finish_reason: str | None = None,
    stop_reason: int | None = None,
) -> dict[str, Any]:
    """The record of one output.

    Args:
        rows: per token what vLLM's logprobs processor is given: `token_ids` and `logprobs` (the
            emitted token, then the top ones; floats as words) and the emitted token's `rank`.
            None for a request without logprobs.
        token_ids: the emitted tokens.
        vocab_size: the model's.
        supports: the sampling mask's.
        finish_reason: vLLM's.
        stop_reason: vLLM's.
    """
    completion = CompletionOutput(
        index=0,
        text="",
        token_ids=token_ids,
        cumulative_logprob=None,
        logprobs=None if rows is None else _flat(rows),
        sampling_mask=None if supports is None else SamplingMask(supports),
        finish_reason=finish_reason,
        stop_reason=stop_reason,
    )
    output = RequestOutput("a", None, [1], None, [completion], finished=finish_reason is not None)
    return records.emission(3, 7, output, vocab_size)


def _flat(rows: list[Row]) -> FlatLogprobs:
    flat = FlatLogprobs()
    for row in rows:
        # As the logprobs processor has them: float32, widened.
        values = torch.tensor([float(v) for v in row["logprobs"]], dtype=torch.float32).tolist()
        ids = row["token_ids"]
        append_logprobs_for_next_position(
            flat, ids, values, [None] * len(ids), row["rank"], len(ids) - 1
        )
    return flat


def params(sampling: dict[str, Any]) -> dict[str, Any]:
    """The fields of the `SamplingParams` that a request's sampling becomes."""
    made = records.sampling_params(sampling)
    names = [name for name in made.__struct_fields__ if not name.startswith("_")]
    fields = {name: getattr(made, name) for name in names}
    fields["output_kind"] = RequestOutputKind(made.output_kind).name
    fields["bad_words_token_ids"] = made.bad_words_token_ids
    fields["logit_bias"] = None if made.logit_bias is None else list(made.logit_bias.items())
    return {name: value for name, value in fields.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, (str, int, float))


def refusals(requests: list[dict[str, Any]], vocab_size: int) -> dict[str, str]:
    """What vLLM does not take of some requests' sampling with speculation, in its words.

    Its own checks are made of the parameters, and its sampler's states are given them.
    """
    model = SimpleNamespace(
        max_logprobs=-1, get_vocab_size=lambda: vocab_size, is_diffusion=False, logits_processors=()
    )
    states = SimpleNamespace(
        prompt_len=UvaBackedTensor(1, dtype=torch.int32),
        max_num_reqs=1,
        device=torch.device("cpu"),
        vocab_size=vocab_size,
    )
    bias, bad_words = LogitBiasState(None, states), BadWordsState(None, states)
    refused = {}
    for request in requests:
        try:
            made: SamplingParams = records.sampling_params(request["sampling"])
            made.update_from_generation_config({}, 1)
            made.verify(model, SimpleNamespace(), None, None)
            bias.add_request(0, made)
            bad_words.add_request(0, made)
        except Exception as error:
            refused[request["id"]] = f"{type(error).__name__}: {error}"
    return refused


class _Kind(enum.Enum):
    FAST = 1


@dataclasses.dataclass
class _Section:
    text: str = "a"
    number: float = 0.5
    kind: _Kind = _Kind.FAST
    nothing: None = None
    folder: Any = dataclasses.field(default_factory=dict)
    dtype: Any = torch.bfloat16


def flattened() -> dict[str, str]:
    """A configuration of one section, as the description has it."""
    return records._flatten(SimpleNamespace(model_config=_Section(), cache_config=None))
