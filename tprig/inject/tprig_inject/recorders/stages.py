"""Digests of the tensors at the stages of a model step, so that two runs can be told apart.

Only what is asked for is hooked and copied: a digest costs a copy to the host.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tprig_inject.context import Context
from tprig_inject.hooks import Layer

DIGEST_BYTES = 16
ROW_DIGEST_BYTES = 4
"""Enough to tell which row of two differs, once the digests of the whole do."""


def tensor_digest(tensor: Any) -> str:
    """BLAKE2b-128 over a tensor's bytes in C order, in hex; dtype and shape are not part of it."""
    import torch

    flat = _on_host(tensor).reshape(-1).view(torch.uint8)
    return hashlib.blake2b(flat.numpy(), digest_size=DIGEST_BYTES).hexdigest()


def _on_host(tensor: Any) -> Any:
    return tensor.detach().cpu().contiguous()


def row_digests(tensor: Any) -> list[str]:
    """A short digest of each row of a matrix; none of what is no matrix."""
    import torch

    if tensor.dim() != 2 or not tensor.numel():
        return []
    rows = _on_host(tensor).view(torch.uint8).numpy()
    return [hashlib.blake2b(row, digest_size=ROW_DIGEST_BYTES).hexdigest() for row in rows]


class Digester:
    """Writes `stage` records, counting how often a stage is met within a step."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._step = -1
        self._met: Counter[str] = Counter()

    def __call__(self, stage: str, tensor: Any, rows: Any = None) -> None:
        """Digest one tensor at one stage of the current step.

        Args:
            stage: which.
            tensor: of any shape.
            rows: a matrix to tell rows apart by; None when the tensor is one, or nothing is.
        """
        if self._context.step != self._step:
            self._step = self._context.step
            self._met.clear()
        host = _on_host(tensor)
        record = {
            "type": "stage",
            "step": max(self._step, 0),
            "stage": stage,
            "ordinal": self._met[stage],
            "dtype": str(host.dtype).removeprefix("torch."),
            "shape": list(host.shape),
            "digest": tensor_digest(host),
            "rows": row_digests(host if rows is None else rows),
        }
        self._met[stage] += 1
        self._context.write(record)


def _embedding(context: Context) -> None:
    digest = Digester(context)
    for name, module in context.model_runner.model.named_modules():
        if name.endswith("embed_tokens"):
            _on_forward(context, module, lambda output: digest("embedding", output))


def _layers(context: Context) -> None:
    digest = Digester(context)
    for name, module in context.model_runner.model.named_modules():
        if match := re.search(r"(?:^|\.)layers\.(\d+)$", name):
            _on_forward(context, module, _layer_digest(digest, f"layer.{match[1]}"))


def _layer_digest(digest: Digester, stage: str) -> Callable[[Any], None]:
    def on_output(output: Any) -> None:
        # A decoder layer returns its hidden states, or (hidden states, residual).
        parts = output if isinstance(output, tuple) else (output,)
        for part in parts:
            if part is not None:
                digest(stage, part)

    return on_output


def _on_forward(context: Context, module: Any, on_output: Callable[[Any], None]) -> None:
    handle = module.register_forward_hook(lambda _module, _args, output: on_output(output))
    context.on_end(handle.remove)


def _gather(context: Context, stage: str) -> None:
    digest = Digester(context)

    def wrap(original: Any) -> Any:
        def gather(self: Any, logits: Any) -> Any:
            if stage == "local_logits":
                digest(stage, logits)
            gathered = original(self, logits)
            if stage == "gathered_logits" and gathered is not None:
                digest(stage, gathered)
            return gathered

        return gather

    context.wrap("logits_processor.gather", Layer.RECORDER, wrap)


def _processed_logits(context: Context) -> None:
    digest = Digester(context)

    def wrap_verify(original: Any) -> Any:
        def verify(self: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(self, *args, **kwargs)
            digest("processed_logits", output[0])
            return output

        return verify

    def wrap_sample(original: Any) -> Any:
        def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(self, *args, **kwargs)
            digest("processed_logits", output[1])
            return output

        return sample

    context.wrap("rejection_sampler.verify", Layer.RECORDER, wrap_verify)
    context.wrap("sampler.sample", Layer.RECORDER, wrap_sample)


def _sampled(context: Context, stage: str) -> None:
    digest = Digester(context)

    def wrap(original: Any) -> Any:
        def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(self, *args, **kwargs)
            if stage == "verification":
                written = output[0].sampled_token_ids, output[0].num_sampled
                digest(stage, initialised(*written), blanked(*written))
                digest(stage, output[0].num_sampled)
            elif output[0].sampling_mask_tensors is not None:
                mask = output[0].sampling_mask_tensors
                written = mask.token_ids, mask.counts
                digest(stage, initialised(*written), blanked(*written))
                digest(stage, mask.counts)
            return output

        return sample

    context.wrap("model_runner.sample", Layer.RECORDER, wrap)


def initialised(rows: Any, counts: Any) -> Any:
    """The written part of each row, one after another: the rest is uninitialised memory.

    Args:
        rows: `[rows, width]`.
        counts: `[rows]`, how much of each row is written; more than the width means all of it.

    Returns:
        A tensor of one dimension.
    """
    import torch

    columns = torch.arange(rows.shape[1], device=rows.device)
    return rows[columns[None, :] < counts[:, None]]


def blanked(rows: Any, counts: Any) -> Any:
    """The same rows, -1 where they are not written."""
    import torch

    columns = torch.arange(rows.shape[1], device=rows.device)
    return rows.where(columns[None, :] < counts[:, None], -1)


def _host_copy(context: Context) -> None:
    import torch

    digest = Digester(context)

    def wrap(original: Any) -> Any:
        def get_output(self: Any) -> Any:
            output = original(self)
            rows = [torch.tensor(row, dtype=torch.int64) for row in output.sampled_token_ids]
            flat = torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)
            padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
            digest("host_copy", flat, padded)
            return output

        return get_output

    context.wrap("async_output.get_output", Layer.RECORDER, wrap)


INSTALLERS: Mapping[str, Callable[[Context], None]] = {
    "embedding": _embedding,
    "layers": _layers,
    "local_logits": lambda context: _gather(context, "local_logits"),
    "gathered_logits": lambda context: _gather(context, "gathered_logits"),
    "processed_logits": _processed_logits,
    "verification": lambda context: _sampled(context, "verification"),
    "mask": lambda context: _sampled(context, "mask"),
    "host_copy": _host_copy,
}
"""Stage -> what hooks it."""

SEAMS: Mapping[str, tuple[str, ...]] = {
    "embedding": (),
    "layers": (),
    "local_logits": ("logits_processor.gather",),
    "gathered_logits": ("logits_processor.gather",),
    "processed_logits": ("rejection_sampler.verify", "sampler.sample"),
    "verification": ("model_runner.sample",),
    "mask": ("model_runner.sample",),
    "host_copy": ("async_output.get_output",),
}
"""Stage -> the seams it rests on."""
