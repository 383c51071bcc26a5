"""Whether a captured call may be run at all: every shape, index and bound of it.

vLLM's kernels follow raw indices, and a record may come from anybody. What is refused here never
reaches a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tprig.evidence import CALL_VERSION, CapturedCall, ReplayArm
from tprig.history import Arrays

STATE_BYTES = 16 << 30
"""What a replay may ask for: vLLM's tables have a row for each slot, used or not."""
PADDING = 1 << 16
"""Elements that may lie between two rows of logits: vLLM pads a vocabulary to 64 for each rank."""
_TOP = 2**31 - 1
_FLOATS = ("float32", "bfloat16", "float16")
_INT32, _INT64, _BOOL = ("int32",), ("int64",), ("bool",)
_INTEGERS = ("int32", "int64")

_Shape = tuple[str, ...]
_REQUIRED: Mapping[str, tuple[tuple[str, ...], _Shape]] = {
    "logits": (_FLOATS, ("N", "V")),
    "input_ids": (_INT32, ("T",)),
    "positions": (_INT64, ("T",)),
    "logits_indices": (_INTEGERS, ("N",)),
    "expanded_idx_mapping": (_INTEGERS, ("N",)),
    "expanded_local_pos": (_INTEGERS, ("N",)),
    "idx_mapping": (_INTEGERS, ("R",)),
    "idx_mapping_np": (_INTEGERS, ("R",)),
    "cu_num_logits": (_INTEGERS, ("R+1",)),
    "cu_num_logits_np": (_INTEGERS, ("R+1",)),
    "seq_lens": (_INT32, ("R",)),
    "seq_lens_cpu_upper_bound": (_INTEGERS, ("R",)),
    **dict.fromkeys(("temperature", "top_p", "min_p"), (("float32",), ("R",))),
    **dict.fromkeys(
        ("repetition_penalty", "frequency_penalty", "presence_penalty"), (("float32",), ("R",))
    ),
    **dict.fromkeys(("top_k", "min_lens", "prompt_len", "prefill_len"), (_INT32, ("R",))),
    **dict.fromkeys(("total_len", "num_logprobs", "num_bad_words"), (_INT32, ("R",))),
    **dict.fromkeys(
        ("num_allowed_token_ids", "num_logit_bias", "num_stop_token_ids"), (_INT32, ("R",))
    ),
    "seeds": (_INT64, ("R",)),
    **dict.fromkeys(("needs_logits_processing", "use_penalty", "use_logit_bias"), (_BOOL, ("R",))),
    "rng": (("uint8",), ("*",)),
}
_OPTIONAL: Mapping[str, tuple[tuple[str, ...], _Shape]] = {
    "draft_logits": (_FLOATS, ("R", "K", "*")),
    "invalid_drafts": (_BOOL, ("N",)),
    "restore_when_all_masked": (_INT32, ("R",)),
    "synthetic_conditional_rates": (("float32",), ("K",)),
    **dict.fromkeys(("allowed_token_ids", "stop_token_ids"), (_INT32, ("R", "*"))),
    "logit_bias_token_ids": (_INT32, ("R", "*")),
    "logit_bias": (("float32",), ("R", "*")),
    **dict.fromkeys(("bad_word_token_ids", "bad_word_offsets"), (_INT32, ("R", "*"))),
    "all_token_ids": (_INT32, ("R", "*")),
    "prompt_bin_mask": (_INT32, ("P", "V/32")),
    "output_bin_counts": (_INT32, ("P", "V")),
}
_OUTPUTS: Mapping[str, tuple[tuple[str, ...], _Shape]] = {
    **dict.fromkeys(("num_verified", "num_sampled", "num_rejected"), (_INT32, ("R",))),
    "sampled": (_INT64, ("*",)),
    "rng_after": (("uint8",), ("*",)),
}
_OPTIONAL_OUTPUTS: Mapping[str, tuple[tuple[str, ...], _Shape]] = {
    # A digest is all that is kept of large ones.
    "processed_logits": (_FLOATS, ("N", "V")),
    "logprob_token_ids": (_INT64, ("N", "*")),
    "logprobs": (("float32",), ("N", "*")),
    "ranks": (_INTEGERS, ("N",)),
    "cu_num_generated": (_INT64, ("*",)),
    "mask_width": (_INT64, ("1",)),
    "mask_counts": (_INT32, ("M",)),
    "mask_token_ids": (_INT32, ("*",)),
    "mask_bits": (("uint8",), ("*", "V/8")),
}
# Counts, the buffers they count columns of, and how wide vLLM's own are.
_LISTS = (
    ("num_allowed_token_ids", ("allowed_token_ids",), 1024),
    ("num_logit_bias", ("logit_bias_token_ids", "logit_bias"), 1024),
    ("num_stop_token_ids", ("stop_token_ids",), 128),
)


class CallBoundsError(ValueError):
    """A field of a captured call is out of bounds."""

    def __init__(self, field: str, expected: str, found: object) -> None:
        """State the field, what it must be and what it is."""
        super().__init__(f"{field}: expected {expected}, found {found}")
        self.field = field


def arms(tensors: Arrays) -> list[ReplayArm]:
    """The arms in which a call can be replayed: replay refuses greedy requests."""
    return ["off"] if bool((tensors["temperature"] == 0).any()) else ["off", "on"]


def require_bounds(call: CapturedCall, tensors: Arrays) -> None:
    """Refuse a call that could make a kernel read or write where it must not.

    Raises:
        CallBoundsError: naming the first field that is out of bounds.
    """
    _require("version", call.version == CALL_VERSION, str(CALL_VERSION), call.version)
    _Bounds(call, tensors).check()


def _require(field: str, holds: object, expected: str, found: object) -> None:
    if not holds:
        raise CallBoundsError(field, expected, found)


@dataclass
class _Bounds:
    call: CapturedCall
    tensors: Arrays

    def check(self) -> None:
        self.dtypes = {t.name: t.dtype for t in self.call.tensors}
        self._flags()
        self._shapes()
        self._layout()
        self._rows()
        self._parameters()
        self._lists()
        self._bad_words()
        self._outputs()

    def _flags(self) -> None:
        flags = self.call.flags
        rows = self.tensors.get("logits")
        width = None if rows is None or rows.ndim != 2 else rows.shape[1]
        _require("flags.vocab_size", flags.vocab_size == width, "the logits' width", width)
        slots, steps = flags.max_num_reqs, flags.num_speculative_steps
        drafts = steps if "draft_logits" in self.tensors else 0
        most = 4 * slots * (flags.max_model_len + flags.vocab_size * (1 + drafts) + 4096)
        _require("flags", most <= STATE_BYTES, f"tables of {STATE_BYTES} bytes", f"{most} bytes")
        _require("flags.num_speculative_steps", steps <= 1024, "at most 1024", steps)
        stride = flags.logits_stride
        fits = flags.vocab_size <= stride <= flags.vocab_size + PADDING
        _require("flags.logits_stride", fits, f"the vocabulary and at most {PADDING} more", stride)

    def _shapes(self) -> None:
        known = {**_REQUIRED, **_OPTIONAL, **_OUTPUTS, **_OPTIONAL_OUTPUTS}
        for name in (*_REQUIRED, *_OUTPUTS):
            _require(name, name in self.tensors, "a tensor of that name", "none")
        sizes = self._sizes()
        for name, array in self.tensors.items():
            _require(name, name in known, "a tensor that is known", "another one")
            dtypes, shape = known[name]
            found = self.dtypes.get(name)
            _require(name, found in dtypes, " or ".join(dtypes), found)
            wanted = [sizes.get(symbol) for symbol in shape]
            fits = array.ndim == len(shape) and all(
                w is None or w == size for w, size in zip(wanted, array.shape, strict=True)
            )
            _require(name, fits, f"shape {list(shape)} = {wanted}", list(array.shape))

    def _sizes(self) -> dict[str, int]:
        requests, flags = len(self.call.requests), self.call.flags
        penalised = self.tensors["use_penalty"]
        return {
            "1": 1,
            "R": requests,
            "R+1": requests + 1,
            "N": len(self.tensors["logits"]),
            "T": len(self.tensors["input_ids"]),
            "V": flags.vocab_size,
            "K": flags.num_speculative_steps,
            "P": int((penalised != 0).sum()),
            "V/32": -(-flags.vocab_size // 32),
            "V/8": -(-flags.vocab_size // 8),
            "M": requests * (flags.num_speculative_steps + 1),
        }

    def _within(self, name: str, low: int, high: int) -> None:
        """Every element is in [low, high]."""
        array = self.tensors[name]
        if array.size:
            found = (int(array.min()), int(array.max()))
            fits = low <= found[0] and found[1] <= high
            _require(name, fits, f"{low} to {high}", f"{found[0]} to {found[1]}")

    def _equal(self, name: str, expected: NDArray[Any], what: str) -> None:
        found = self.tensors[name]
        _require(name, np.array_equal(found, expected), what, found.tolist()[:32])

    def _layout(self) -> None:
        """Boundaries, slots, and the row and the place in the batch of each row of logits."""
        bounds, slots = self.tensors["cu_num_logits"], self.tensors["idx_mapping"]
        rows = len(self.tensors["logits"])
        self._within("cu_num_logits", 0, rows)
        ends = bounds[0] == 0 and bounds[-1] == rows
        _require("cu_num_logits", ends, f"boundaries from 0 to {rows}", bounds.tolist()[:32])
        widths = np.diff(bounds)
        most = self.call.flags.num_speculative_steps + 1
        fits = bool(((widths >= 1) & (widths <= most)).all())
        _require("cu_num_logits", fits, f"1 to {most} rows a request", widths.tolist()[:32])
        self._equal("cu_num_logits_np", bounds, "what cu_num_logits holds")
        self._within("idx_mapping", 0, self.call.flags.max_num_reqs - 1)
        unique = len(np.unique(slots)) == len(slots)
        _require("idx_mapping", unique, "a slot of its own a request", slots.tolist()[:32])
        self._equal("idx_mapping_np", slots, "what idx_mapping holds")
        self._equal("expanded_idx_mapping", np.repeat(slots, widths), "each row's slot")
        places = np.arange(rows) - np.repeat(bounds[:-1], widths)
        self._equal("expanded_local_pos", places, "each row's place in its request")

    def _rows(self) -> None:
        tokens, vocab_size = len(self.tensors["input_ids"]), self.call.flags.vocab_size
        self._within("logits_indices", 0, tokens - 1)
        # -1 is a placeholder where there is no draft.
        self._within("input_ids", -1, vocab_size - 1)
        self._within("positions", 0, _TOP)
        for name in ("seq_lens", "seq_lens_cpu_upper_bound"):
            self._within(name, 0, _TOP)

    def _parameters(self) -> None:
        flags = self.call.flags
        self._within("top_k", 1, flags.vocab_size)
        self._within("num_logprobs", -1, flags.vocab_size)
        for name in ("prompt_len", "prefill_len", "total_len"):
            self._within(name, 0, flags.max_model_len)
        self._within("min_lens", 0, _TOP)
        if "output_bin_counts" in self.tensors:
            self._within("output_bin_counts", 0, _TOP)
        if "prompt_bin_mask" in self.tensors or bool(self.tensors["use_penalty"].any()):
            for name in ("prompt_bin_mask", "output_bin_counts"):
                _require(name, name in self.tensors, "the bins of penalised requests", "none")
        for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
            values = self.tensors[name]
            fits = bool((np.isfinite(values) & (values >= 0)).all())
            _require(name, fits, "finite numbers from 0", values.tolist()[:32])
        synthetic = flags.verification == "synthetic"
        held = "synthetic_conditional_rates" in self.tensors
        _require("synthetic_conditional_rates", held == synthetic, f"present: {synthetic}", held)

    def _lists(self) -> None:
        for count, buffers, widest in _LISTS:
            counts = self.tensors[count]
            most = int(counts.max(initial=0))
            _require(count, counts.min(initial=0) >= 0, "counts from 0", int(counts.min(initial=0)))
            _require(count, most <= widest, f"at most {widest}", most)
            for name in buffers:
                width = self.tensors[name].shape[1] if name in self.tensors else 0
                _require(name, most <= width <= widest, f"{most} to {widest} columns", width)
                if most and name != "logit_bias":
                    live = np.arange(width) < counts[:, None]
                    self._live(name, live)

    def _live(self, name: str, live: NDArray[np.bool_]) -> None:
        ids = self.tensors[name][live]
        top = self.call.flags.vocab_size - 1
        fits = not ids.size or (ids.min() >= 0 and ids.max() <= top)
        _require(name, fits, f"token ids from 0 to {top}", ids.tolist()[:32])

    def _bad_words(self) -> None:
        counts = self.tensors["num_bad_words"]
        most = int(counts.max(initial=0))
        _require("num_bad_words", counts.min(initial=0) >= 0, "counts from 0", counts.tolist()[:32])
        if not most:
            return
        for name in ("bad_word_offsets", "bad_word_token_ids", "all_token_ids"):
            _require(name, name in self.tensors, "the bad words of the batch", "none")
        offsets, width = self.tensors["bad_word_offsets"], self.tensors["bad_word_token_ids"]
        _require("bad_word_offsets", offsets.shape[1] > most, f"{most + 1} columns", offsets.shape)
        live = np.arange(offsets.shape[1]) <= counts[:, None]
        inside = bool(((offsets >= 0) & (offsets <= width.shape[1]))[live].all())
        rising = bool((np.diff(offsets, axis=1) > 0)[live[:, 1:]].all())
        _require("bad_word_offsets", inside and rising, "rising offsets", offsets.tolist()[:4])
        ends = np.where(counts > 0, offsets[np.arange(len(counts)), counts], 0)
        self._live("bad_word_token_ids", np.arange(width.shape[1]) < ends[:, None])
        tokens = self.tensors["all_token_ids"]
        fits = tokens.shape[1] <= self.call.flags.max_model_len
        _require("all_token_ids", fits, "at most max_model_len columns", tokens.shape)
        lengths = self.tensors["total_len"]
        for name in ("total_len", "prompt_len"):
            self._within(name, 0, tokens.shape[1])
        begun = bool((self.tensors["prompt_len"] <= lengths).all())
        _require("prompt_len", begun, "at most total_len", self.tensors["prompt_len"].tolist())

    def _outputs(self) -> None:
        """What was returned reaches no kernel, but is taken apart by its own counts."""
        verified = self.tensors["num_verified"]
        widths = np.diff(self.tensors["cu_num_logits"])
        fits = bool(((verified >= 1) & (verified <= widths)).all())
        _require("num_verified", fits, "1 to a request's rows", verified.tolist()[:32])
        flat = len(self.tensors["sampled"])
        _require("sampled", flat == verified.sum(), f"{verified.sum()} tokens", flat)
        if "mask_counts" in self.tensors:
            self._mask(int(verified.sum()))

    def _mask(self, live: int) -> None:
        flags, counts = self.call.flags, self.tensors["mask_counts"]
        for name in ("mask_token_ids", "mask_bits", "mask_width"):
            _require(name, name in self.tensors, "beside mask_counts", "none")
        self._within("mask_width", 1, flags.vocab_size)
        self._within("mask_counts", 0, flags.vocab_size)
        wanted = int(np.minimum(counts, self.tensors["mask_width"]).sum())
        found = len(self.tensors["mask_token_ids"])
        _require("mask_token_ids", found == wanted, f"{wanted} ids", found)
        rows = len(self.tensors["mask_bits"])
        _require("mask_bits", rows == live, f"{live} rows", rows)
