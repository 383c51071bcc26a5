"""Runs vLLM's own sampler on calls that were made up elsewhere, in an interpreter with vLLM.

Each call gets a fresh `RequestState`, `Sampler` and `RejectionSampler`. The requests' parameters
go in by vLLM's own doors (`add_request`, `apply_staged_writes`), so that what the reference reads
as a `Request` is not what vLLM made of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tprig_inject import interpreter
from triton import language as tl
from triton.runtime import interpreter as triton_interpreter
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.spec_decode import rejection_sampler
from vllm.v1.worker.gpu.states import RequestState

from tests.tprig.checkers.reference.drawn import Drawn, History
from tprig.checkers.reference.call import Request, SamplerCall, SamplerResult, TieRule

CPU = torch.device("cpu")


class _Index(int):
    """A loop's counter, which the kernel of the Triton path casts: of any width already."""

    def to(self, _: Any) -> int:
        return int(self)


def prepare() -> None:
    """Let vLLM's kernels run in Triton's interpreter, those of its Triton filters among them."""
    interpreter.supply()
    _wrap_ranges()


def _wrap_ranges() -> None:
    """Let `_topk_topp_kernel` run in the interpreter, whose `tl.range` gives bare integers."""
    patch = triton_interpreter._patch_lang

    def patch_and_wrap(fn: Any) -> Any:
        scope = patch(fn)
        if not isinstance(tl.range, partial):
            tl.range = partial(_indices, tl.range)
        return scope

    triton_interpreter._patch_lang = patch_and_wrap


def _indices(make_range: Any, *arguments: Any, **options: Any) -> Iterator[_Index]:
    return map(_Index, make_range(*arguments, **options))


def run(drawn: Drawn) -> SamplerResult:
    """What vLLM returns for the call."""
    call = drawn.call
    most = call.max_chunk_logits or len(call.logits)
    rejection_sampler.get_max_chunk_logits = lambda _: most
    topk_topp_sampler.HAS_TRITON = call.tie_rule is TieRule.EXACTLY_K
    slots = _Slots(drawn)
    sampler = rejection_sampler.RejectionSampler(slots.sampler, _speculation(call), CPU)
    spy = _Spy(sampler)
    output = sampler(*_arguments(call, slots))
    return _result(call, output, spy)


class _Spy:
    """Keeps what a call computes on its way and does not return."""

    def __init__(self, sampler: Any) -> None:
        self.processed: list[Any] = []
        self.sampled: list[Any] = []
        verify = sampler._verify

        def _verify(*args: Any) -> Any:
            processed, sampled, num_sampled = verify(*args)
            self.processed.append(processed.clone())
            self.sampled.append(num_sampled.clone())
            return processed, sampled, num_sampled

        sampler._verify = _verify


def _speculation(call: SamplerCall) -> Any:
    return SimpleNamespace(
        num_speculative_tokens=call.num_speculative_steps,
        enable_adaptive_verification=False,
        rejection_sample_method=call.verification.value,
        synthetic_acceptance_rates=_unconditional(call),
    )


def _unconditional(call: SamplerCall) -> list[float] | None:
    if call.synthetic_rates is None:
        return None
    return [float(rate) for rate in np.cumprod(call.synthetic_rates.astype(np.float64))]


class _Slots:
    """vLLM's state with the call's requests in their slots."""

    def __init__(self, drawn: Drawn) -> None:
        call = drawn.call
        count = int(call.idx_mapping.max()) + 1
        longest = max(len(history.token_ids) for history in drawn.histories)
        self.states = RequestState(
            count, longest + 1, 64, call.num_speculative_steps, call.vocab_size, CPU
        )
        self.sampler = Sampler(
            SimpleNamespace(reasoning_config=None),
            count,
            call.vocab_size,
            CPU,
            self.states,
            logprobs_mode=call.logprobs_mode.value,
            num_speculative_tokens=call.num_speculative_steps,
            use_fp64_gumbel=call.fp64_gumbel,
            return_sampling_mask=call.replay,
        )
        for slot, request, history in zip(
            map(int, call.idx_mapping), call.requests, drawn.histories, strict=True
        ):
            self._add(slot, request, history)
        # Output tokens are counted up to the prefill's end: here, all of them.
        self.states.apply_staged_writes()
        self.sampler.apply_staged_writes()
        for slot, request in zip(map(int, call.idx_mapping), call.requests, strict=True):
            self.states.prefill_len.np[slot] = request.prefill_len
        self.states.apply_staged_writes()

    def _add(self, slot: int, request: Request, history: History) -> None:
        self.states.free_indices.remove(slot)
        self.states.free_indices.append(slot)
        self.states.add_request(str(slot), history.prompt_len, history.token_ids.tolist(), 0, 9)
        self.sampler.add_request(slot, _parameters(request, history))


def _parameters(request: Request, history: History) -> Any:
    """What the sampler reads of `SamplingParams`, without the bounds that are set for users."""
    bias = None
    if request.bias is not None and request.bias_token_ids is not None:
        bias = dict(zip(request.bias_token_ids.tolist(), request.bias.tolist(), strict=True))
    return SimpleNamespace(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        seed=request.seed,
        logprobs=None if request.num_logprobs < 0 else request.num_logprobs,
        repetition_penalty=request.repetition_penalty,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        allowed_token_ids=_listed(request.allowed_token_ids),
        logit_bias=bias,
        min_tokens=request.min_len - history.prompt_len,
        all_stop_token_ids=_listed(request.stop_token_ids),
        structured_outputs=() if request.restore_when_all_masked else None,
        bad_words_token_ids=[word.tolist() for word in request.bad_words],
        thinking_token_budget=None,
        logprob_token_ids=None,
    )


def _listed(ids: Any) -> list[int] | None:
    return None if ids is None else ids.tolist()


def _arguments(call: SamplerCall, slots: _Slots) -> tuple[Any, ...]:
    rows = len(call.logits)
    batch = SimpleNamespace(
        num_reqs=call.num_requests,
        idx_mapping=torch.from_numpy(call.idx_mapping.astype(np.int32)),
        idx_mapping_np=call.idx_mapping.astype(np.int32),
        expanded_idx_mapping=torch.from_numpy(call.expanded_idx_mapping.astype(np.int32)),
        expanded_local_pos=torch.from_numpy(call.expanded_local_pos.astype(np.int32)),
        input_ids=torch.from_numpy(call.input_ids.astype(np.int32)),
        positions=torch.from_numpy(call.positions),
        logits_indices=torch.arange(rows),
        cu_num_logits=torch.from_numpy(call.cu_num_logits.astype(np.int32)),
        cu_num_logits_np=call.cu_num_logits.astype(np.int32),
        seq_lens=torch.tensor([r.seq_len for r in call.requests], dtype=torch.int32),
        seq_lens_cpu_upper_bound=torch.tensor([r.seq_len for r in call.requests]),
    )
    drafts = None
    if call.draft_logits is not None:
        shape = (int(call.idx_mapping.max()) + 1, *call.draft_logits.shape[1:])
        drafts = torch.full(shape, torch.nan)
        drafts[torch.from_numpy(call.idx_mapping)] = torch.from_numpy(call.draft_logits)
    invalid = None if call.invalid_drafts is None else torch.from_numpy(call.invalid_drafts)
    return torch.from_numpy(call.logits.copy()), batch, drafts, invalid


def _result(call: SamplerCall, output: Any, spy: _Spy) -> SamplerResult:
    scores, masks = output.logprobs_tensors, output.sampling_mask_tensors
    before = torch.cat(spy.sampled).numpy()
    return SamplerResult(
        sampled=output.sampled_token_ids.numpy(),
        num_sampled=output.num_sampled.numpy(),
        num_rejected=output.num_rejected.numpy(),
        logprob_token_ids=None if scores is None else scores.logprob_token_ids.numpy(),
        logprobs=None if scores is None else scores.logprobs.numpy(),
        ranks=None if scores is None else scores.selected_token_ranks.numpy(),
        supports=None if masks is None else _supports(masks, before),
        processed_logits=torch.cat(spy.processed).numpy(),
    )


def _supports(masks: Any, sampled: Any) -> tuple[tuple[Any, ...], ...]:
    lists = masks.tolists(sampled)
    supports = np.split(lists.token_ids, lists.offsets[1:-1])
    ends = np.cumsum(sampled)
    return tuple(
        tuple(supports[end - count : end]) for end, count in zip(ends, sampled, strict=True)
    )
