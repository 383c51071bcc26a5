"""Builds vLLM's own samplers from a captured call, runs the call, and tells what it returned.

Stands alone: it needs torch, NumPy and vLLM, and is copied as it is into exported tests.

A captured call is a mapping from names to CPU tensors, and a mapping of flags. State that vLLM
keeps per slot of its request table is captured for the slots of the batch alone, in the order of
the batch, and is put back into the same slots. Shapes: R requests, N rows of logits, T tokens of
the batch, V the vocabulary, K speculative steps, P requests with penalties.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

Tensors = dict[str, Any]
Flags = Mapping[str, Any]


def _processor(sampler: Any, name: str) -> Any:
    return next(p for p in sampler.logits_processors if type(p).__name__ == name)


def _bias(sampler: Any) -> Any:
    return _processor(sampler, "LogitBiasState")


def _bad_words(sampler: Any) -> Any:
    return _processor(sampler, "BadWordsState")


def _speculation_defaults() -> dict[str, Any]:
    """The fields of vLLM's own config: which of them the sampler reads is for each version."""
    from vllm.config import SpeculativeConfig

    defaults = {field.name: field.default for field in dataclasses.fields(SpeculativeConfig)}
    # A pydantic field holds its default within.
    return {name: getattr(value, "default", value) for name, value in defaults.items()}


Find = Callable[[Any], Any]
"""Takes a sampler, returns the buffer of a name."""

# [R] each. `.np` is vLLM's host copy and `.gpu` what its kernels read.
UVA_BACKED: Mapping[str, Find] = {
    "temperature": lambda s: s.sampling_states.temperature,
    "top_k": lambda s: s.sampling_states.top_k,
    "top_p": lambda s: s.sampling_states.top_p,
    "min_p": lambda s: s.sampling_states.min_p,
    "seeds": lambda s: s.sampling_states.seeds,
    "repetition_penalty": lambda s: s.penalties_state.repetition_penalty,
    "frequency_penalty": lambda s: s.penalties_state.frequency_penalty,
    "presence_penalty": lambda s: s.penalties_state.presence_penalty,
    "num_allowed_token_ids": lambda s: _bias(s).num_allowed_token_ids,
    "num_logit_bias": lambda s: _bias(s).num_logit_bias,
    "min_lens": lambda s: _bias(s).min_lens,
    "num_stop_token_ids": lambda s: _bias(s).num_stop_token_ids,
    "restore_when_all_masked": lambda s: _bias(s).restore_when_all_masked,
    "num_bad_words": lambda s: _bad_words(s).num_bad_words,
    "prompt_len": lambda s: s.req_states.prompt_len,
    "prefill_len": lambda s: s.req_states.prefill_len,
}
NEWER = {"restore_when_all_masked"}
"""What vLLM 0.31 does not have yet."""


def uva_backed(sampler: Any) -> dict[str, Any]:
    """The buffers of `UVA_BACKED`, without those that this vLLM is too old for."""
    bias = _bias(sampler)
    absent = {name for name in NEWER if not hasattr(bias, name)}
    return {name: find(sampler) for name, find in UVA_BACKED.items() if name not in absent}


# [R] each, read on the host.
HOST: Mapping[str, Find] = {
    "num_logprobs": lambda s: s.sampling_states.num_logprobs,
    "needs_logits_processing": lambda s: s.needs_logits_processing,
    "use_penalty": lambda s: s.penalties_state.use_penalty,
    "use_logit_bias": lambda s: _bias(s).use_logit_bias,
}
# [R, width in use] each, but for `total_len`, which is [R].
STAGED: Mapping[str, Find] = {
    "allowed_token_ids": lambda s: _bias(s).allowed_token_ids,
    "logit_bias_token_ids": lambda s: _bias(s).logit_bias_token_ids,
    "logit_bias": lambda s: _bias(s).logit_bias,
    "stop_token_ids": lambda s: _bias(s).stop_token_ids,
    "bad_word_token_ids": lambda s: _bad_words(s).bad_word_token_ids,
    "bad_word_offsets": lambda s: _bad_words(s).bad_word_offsets,
    "all_token_ids": lambda s: s.req_states.all_token_ids,
    "total_len": lambda s: s.req_states.total_len,
}
# [P, ceil(V / 32)] and [P, V].
BINS: Mapping[str, Find] = {
    "prompt_bin_mask": lambda s: s.penalties_state.prompt_bin_mask,
    "output_bin_counts": lambda s: s.penalties_state.output_bin_counts,
}
# As the batch has them; the last three are host arrays.
BATCH = (
    *("input_ids", "positions", "logits_indices", "expanded_idx_mapping", "expanded_local_pos"),
    *("idx_mapping", "cu_num_logits", "seq_lens"),
)
BATCH_HOST = ("idx_mapping_np", "cu_num_logits_np")


class Arm:
    """A captured call on samplers of its own, fresh for each arm.

    Args:
        tensors: the captured inputs; they are copied, and never written to.
        flags: how the samplers were configured.
        device: where it runs.
        return_sampling_mask: whether replay is on.
    """

    def __init__(
        self, tensors: Tensors, flags: Flags, device: str, *, return_sampling_mask: bool
    ) -> None:
        self._flags = flags
        self._device = torch.device(device)
        self._tensors = tensors
        self.sampler = self._sampler(return_sampling_mask=return_sampling_mask)
        self.rejection_sampler = self._rejection_sampler()
        self._fill()
        self.batch = self._batch()
        self.logits = self._strided(tensors["logits"])
        self.draft_logits = self._draft_logits()
        invalid = tensors.get("invalid_drafts")
        self.invalid_drafts = None if invalid is None else invalid.to(self._device, copy=True)

    # --- building ----------------------------------------------------------------------------

    def _strided(self, logits: Any) -> Any:
        """The rows as far apart as production's, which are cut from a padded vocabulary.

        How a kernel adds a row up depends on where the row begins in memory.
        """
        rows, width = logits.shape
        stride = self._flags["logits_stride"]
        padded = torch.zeros((rows, stride), dtype=logits.dtype, device=self._device)
        padded[:, :width] = logits
        return padded[:, :width]

    def _sampler(self, *, return_sampling_mask: bool) -> Any:
        from vllm.v1.worker.gpu.sample.sampler import Sampler
        from vllm.v1.worker.gpu.states import RequestState

        flags = self._flags
        states = RequestState(
            max_num_reqs=flags["max_num_reqs"],
            max_model_len=flags["max_model_len"],
            max_num_batched_tokens=max(1, self._tensors["input_ids"].shape[0]),
            num_speculative_steps=flags["num_speculative_steps"],
            vocab_size=flags["vocab_size"],
            device=self._device,
        )
        arguments = {
            "vllm_config": SimpleNamespace(reasoning_config=None),
            "max_num_reqs": flags["max_num_reqs"],
            "vocab_size": flags["vocab_size"],
            "device": self._device,
            "req_states": states,
            "logprobs_mode": flags["logprobs_mode"],
            "num_speculative_tokens": flags["num_speculative_steps"] + 1,
            "use_fp64_gumbel": flags["use_fp64_gumbel"],
        }
        if return_sampling_mask:
            arguments["return_sampling_mask"] = True
        # An older vLLM takes fewer; it has the defaults of the others built in.
        known = inspect.signature(Sampler.__init__).parameters
        return Sampler(**{k: v for k, v in arguments.items() if k in known})

    def _rejection_sampler(self) -> Any:
        from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

        method = self._flags["verification"]
        said = {
            "num_speculative_tokens": self._flags["num_speculative_steps"],
            "enable_adaptive_verification": False,
            # The rates of synthetic acceptance were captured as they were computed.
            "rejection_sample_method": "standard" if method == "synthetic" else method,
        }
        config = SimpleNamespace(**{**_speculation_defaults(), **said})
        built = RejectionSampler(self.sampler, config, self._device)
        if method == "synthetic":
            rates = self._tensors["synthetic_conditional_rates"]
            built.synthetic_conditional_rates = rates.to(self._device, copy=True)
        return built

    def _fill(self) -> None:
        slots = self._tensors["idx_mapping_np"].numpy()
        for name, buffer in uva_backed(self.sampler).items():
            if name in NEWER and name not in self._tensors:
                # Captured from an older vLLM, which did what the default does.
                continue
            buffer.np[slots] = self._tensors[name].numpy()
            buffer.copy_to_uva()
        for name, find in HOST.items():
            find(self.sampler)[slots] = self._tensors[name].numpy()
        rows = torch.from_numpy(slots.astype(np.int64)).to(self._device)
        for name, find in STAGED.items():
            if name in self._tensors:
                values = self._tensors[name].to(self._device)
                target = find(self.sampler).gpu
                if values.dim() == 1:
                    target[rows] = values
                else:
                    target[rows, : values.shape[1]] = values
        penalised = rows[self._tensors["use_penalty"].to(self._device)]
        for name, find in BINS.items():
            if name in self._tensors:
                find(self.sampler)[penalised] = self._tensors[name].to(self._device)

    def _batch(self) -> Any:
        """No more than the call is known to read: whatever else it reads is an error."""
        values: dict[str, Any] = {
            name: self._tensors[name].to(self._device, copy=True) for name in BATCH
        }
        values |= {name: self._tensors[name].numpy().copy() for name in BATCH_HOST}
        bound = self._tensors["seq_lens_cpu_upper_bound"].clone()
        return SimpleNamespace(
            **values, seq_lens_cpu_upper_bound=bound, num_reqs=self._tensors["seq_lens"].shape[0]
        )

    def _draft_logits(self) -> Any:
        rows = self._tensors.get("draft_logits")
        if rows is None:
            return None
        slots = self._tensors["idx_mapping"].to(self._device).long()
        shape = (self._flags["max_num_reqs"], *rows.shape[1:])
        full = torch.zeros(shape, dtype=rows.dtype, device=self._device)
        full[slots] = rows.to(self._device)
        return full

    # --- running -----------------------------------------------------------------------------

    def run(self, rng: Any) -> Tensors:
        """Run the call once, with the device's generator restored, and tell what it returned.

        Args:
            rng: the generator's state as it was captured; None leaves it as it is, where it was
                captured on another kind of device.
        """
        if rng is not None:
            set_rng_state(self._device, rng)
        chunks: list[Chunk] = []
        arguments = [self.logits, self.batch, self.draft_logits]
        if self.invalid_drafts is not None:
            arguments.append(self.invalid_drafts)
        with _chunks(self.rejection_sampler, chunks), _limit(self._flags["chunk_logits"]):
            output = self.rejection_sampler(*arguments)
        return outputs(output, chunks) | {"rng_after": rng_state(self._device)}

    def inputs(self) -> Tensors:
        """What the call was given, as it stands now, by the names it was captured under."""
        taken = batch_inputs(self.batch) | state_inputs(self.sampler, self.batch)
        taken["logits"] = self.logits
        if self.draft_logits is not None:
            taken["draft_logits"] = self.draft_logits[self.batch.idx_mapping.long()]
        if self.invalid_drafts is not None:
            taken["invalid_drafts"] = self.invalid_drafts
        rates = self.rejection_sampler.synthetic_conditional_rates
        if rates is not None:
            taken["synthetic_conditional_rates"] = rates
        return on_cpu(taken)


@contextlib.contextmanager
def _chunks(rejection_sampler: Any, chunks: list[Chunk]) -> Iterator[None]:
    """Keep what each chunk of the verification returns before the call goes on with it."""
    original = rejection_sampler._verify

    def verify(*args: Any, **kwargs: Any) -> Any:
        processed, sampled, num_sampled = original(*args, **kwargs)
        chunks.append((processed, num_sampled.clone()))
        return processed, sampled, num_sampled

    rejection_sampler._verify = verify
    try:
        yield
    finally:
        del rejection_sampler._verify


@contextlib.contextmanager
def _limit(chunk_logits: int) -> Iterator[None]:
    """Verify in chunks of as many rows as the captured call was allowed, where vLLM chunks."""
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    original = getattr(rejection_sampler, "get_max_chunk_logits", None)
    if original is None:
        yield
        return
    rejection_sampler.get_max_chunk_logits = lambda _vocab_size: chunk_logits
    try:
        yield
    finally:
        rejection_sampler.get_max_chunk_logits = original


# --- what a call reads and returns ------------------------------------------------------------

Chunk = tuple[Any, Any]
"""Processed logits of a chunk, and how many tokens each of its requests was given."""


def batch_inputs(batch: Any) -> Tensors:
    """What the call reads of the batch, without the padding behind its tokens."""
    taken = {name: getattr(batch, name) for name in BATCH}
    tokens = getattr(batch, "num_tokens", None)
    for name in ("input_ids", "positions"):
        taken[name] = taken[name][:tokens]
    taken["seq_lens"] = taken["seq_lens"][: batch.num_reqs]
    taken |= {name: torch.from_numpy(np.asarray(getattr(batch, name))) for name in BATCH_HOST}
    taken["seq_lens_cpu_upper_bound"] = batch.seq_lens_cpu_upper_bound
    return taken


def state_inputs(sampler: Any, batch: Any) -> Tensors:
    """What the call reads of the state of the batch's slots."""
    slots = np.asarray(batch.idx_mapping_np)
    rows = batch.idx_mapping.long()
    taken = {name: buffer.gpu[rows] for name, buffer in uva_backed(sampler).items()}
    taken |= {name: torch.from_numpy(find(sampler)[slots]) for name, find in HOST.items()}
    taken["total_len"] = STAGED["total_len"](sampler).gpu[rows]
    for name, width in _widths(sampler, slots, taken).items():
        if width:
            taken[name] = STAGED[name](sampler).gpu[rows, :width]
    penalised = rows[taken["use_penalty"].to(rows.device)]
    if penalised.numel():
        taken |= {name: find(sampler)[penalised] for name, find in BINS.items()}
    return taken


def _widths(sampler: Any, slots: Any, taken: Tensors) -> dict[str, int]:
    """How many columns of each wide buffer are in use."""
    host = {name: int(UVA_BACKED[name](sampler).np[slots].max()) for name in _COUNTS}
    words = host["num_bad_words"]
    ends = STAGED["bad_word_offsets"](sampler).gpu[taken_rows(slots)] if words else None
    return {
        "allowed_token_ids": host["num_allowed_token_ids"],
        "logit_bias_token_ids": host["num_logit_bias"],
        "logit_bias": host["num_logit_bias"],
        "stop_token_ids": host["num_stop_token_ids"],
        "bad_word_offsets": words + 1 if words else 0,
        "bad_word_token_ids": int(ends[:, : words + 1].max()) if ends is not None else 0,
        "all_token_ids": int(taken["total_len"].max()) if words else 0,
    }


_COUNTS = ("num_allowed_token_ids", "num_logit_bias", "num_stop_token_ids", "num_bad_words")


def taken_rows(slots: Any) -> Any:
    """Slots as an index for a tensor."""
    return torch.from_numpy(np.asarray(slots).astype(np.int64))


def outputs(output: Any, chunks: list[Chunk]) -> Tensors:
    """What the call returned, without the memory that it never wrote, on the CPU.

    `sampled` is flat over the requests' tokens, as are the supports (`mask_token_ids`, at most
    the compact width of each row; `mask_bits`, whole rows) over the rows that `mask_counts` gives.
    """
    verified = torch.cat([num_sampled for _, num_sampled in chunks])
    taken: Tensors = {
        "num_verified": verified,
        "num_sampled": output.num_sampled,
        "num_rejected": output.num_rejected,
        "sampled": written(output.sampled_token_ids, verified),
        "processed_logits": torch.cat([processed for processed, _ in chunks]),
    }
    if output.num_nans is not None:
        taken["num_nans"] = output.num_nans
    logprobs = output.logprobs_tensors
    if logprobs is not None:
        taken["logprob_token_ids"] = logprobs.logprob_token_ids
        taken["logprobs"] = logprobs.logprobs
        taken["ranks"] = logprobs.selected_token_ranks
        if logprobs.cu_num_generated_tokens is not None:
            taken["cu_num_generated"] = torch.tensor(list(logprobs.cu_num_generated_tokens))
    mask = getattr(output, "sampling_mask_tensors", None)
    if mask is not None:
        live = torch.arange(mask.rows_per_request, device=verified.device)[None, :]
        live = (live < verified[:, None]).reshape(-1)
        taken["mask_width"] = torch.tensor([mask.token_ids.shape[1]])
        taken["mask_counts"] = mask.counts
        taken["mask_token_ids"] = written(mask.token_ids, mask.counts)
        taken["mask_bits"] = mask.packed_mask[live]
    return on_cpu(taken)


def written(rows: Any, counts: Any) -> Any:
    """The written part of each row, one after another: the rest is uninitialised memory."""
    columns = torch.arange(rows.shape[1], device=rows.device)
    return rows[columns[None, :] < counts[:, None]]


def on_cpu(tensors: Tensors) -> Tensors:
    """Copies of their own, contiguous."""
    return {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }


def rng_state(device: Any) -> Any:
    """The state of the device's default generator, `[bytes]`."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def set_rng_state(device: Any, state: Any) -> None:
    """Put the device's default generator into a state."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def first_difference(a: Any, b: Any) -> list[int] | None:
    """Where two tensors first differ in their bits; None when they do not, [] in their form."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return []
    mine, theirs = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    if torch.equal(mine, theirs):
        return None
    size = a.element_size()
    first = int((mine != theirs).nonzero()[0, 0]) // size
    return [int(i) for i in np.unravel_index(first, tuple(a.shape))] if a.dim() else [0]
