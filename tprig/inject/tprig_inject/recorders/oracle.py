"""Captures whole calls of the rejection sampler, so that they can be run again anywhere.

The stream gets a record of digests per kept call, which ties it to the run; the call itself goes
into the bundle's `oracles/`. A call that is not considered costs a comparison, and one that is
considered and not kept costs the snapshot of its inputs.
"""

from __future__ import annotations

from typing import Any

from tprig_inject.context import Context
from tprig_inject.hooks import Layer
from tprig_inject.oracle import rebuild, snapshot, store
from tprig_inject.oracle.choice import Choice, parse, traits
from tprig_inject.recorders.stages import tensor_digest

SEAMS = (
    "model_runner.execute_model",
    "model_runner.sample",
    "rejection_sampler.call",
    "rejection_sampler.verify",
    "logits_processor.gather",
)


def install(context: Context, options: str = "") -> None:
    """Keep the chosen calls of `RejectionSampler.__call__`.

    Args:
        context: the run's.
        options: see `tprig_inject.oracle.choice.Choice`.

    Raises:
        ChoiceError: if the options cannot be meant.
    """
    capture = _Capture(context, parse(options))
    context.wrap("model_runner.sample", Layer.RECORDER, capture.around_sample)
    context.wrap("logits_processor.gather", Layer.RECORDER, capture.around_gather)
    context.wrap("rejection_sampler.verify", Layer.RECORDER, capture.around_verify)
    context.wrap("rejection_sampler.call", Layer.RECORDER, capture.around_call)


class _Upstream:
    """What led to the logits of the current step: kept by copies until it is known to be wanted."""

    def __init__(self) -> None:
        self.hidden: Any = None
        self.shard: Any = None
        self.gathered: Any = None

    def digests(self) -> dict[str, Any]:
        """Digests of the LM head's input, this rank's logits, and each rank's, once gathered."""
        shard, slices = self.shard, []
        if shard is not None and self.gathered is not None:
            width = shard.shape[-1]
            slices = list(self.gathered.split(width, dim=-1))
        return {
            "hidden": None if self.hidden is None else tensor_digest(self.hidden),
            "shard": None if shard is None else tensor_digest(shard),
            "gathered": [tensor_digest(part) for part in slices],
        }


class _Capture:
    """One run's captures in one worker."""

    def __init__(self, context: Context, choice: Choice) -> None:
        self._context = context
        self._choice = choice
        self._calls = 0
        self._kept = 0
        self._kept_bytes = 0
        self._seen: frozenset[str] = frozenset()
        self._upstream: _Upstream | None = None
        self._chunks: list[rebuild.Chunk] | None = None

    def _considers(self) -> bool:
        return self._choice.considers(self._calls, max(self._context.step, 0), self._kept)

    # --- wrappers ----------------------------------------------------------------------------

    def around_sample(self, original: Any) -> Any:
        """Note the input of the LM head of this step."""

        def sample(
            runner: Any, hidden_states: Any, input_batch: Any, *args: Any, **kwargs: Any
        ) -> Any:
            if self._considers() and input_batch.num_draft_tokens:
                self._upstream = _Upstream()
                self._upstream.hidden = hidden_states[input_batch.logits_indices]
            try:
                return original(runner, hidden_states, input_batch, *args, **kwargs)
            finally:
                self._upstream = None

        return sample

    def around_gather(self, original: Any) -> Any:
        """Note this rank's logits and the gathered ones; drafters gather outside of `sample`."""

        def gather(processor: Any, logits: Any) -> Any:
            gathered = original(processor, logits)
            upstream = self._upstream
            if upstream is not None and gathered is not None:
                upstream.shard, upstream.gathered = logits.clone(), gathered.clone()
            return gathered

        return gather

    def around_verify(self, original: Any) -> Any:
        """Note what each chunk of a call that is being captured returned."""

        def verify(sampler: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(sampler, *args, **kwargs)
            if self._chunks is not None:
                # The counts are corrected in place for prefills later on.
                self._chunks.append((output[0], output[2].clone()))
            return output

        return verify

    def around_call(self, original: Any) -> Any:
        """Take what the call reads before it runs, and decide by what it returned."""

        def call(sampler: Any, logits: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
            considered = self._considers()
            self._calls += 1
            if not considered:
                return original(sampler, logits, input_batch, *args, **kwargs)
            taken = self._take(sampler, logits, input_batch, *args, **kwargs)
            self._chunks = []
            try:
                output = original(sampler, logits, input_batch, *args, **kwargs)
                if taken is not None:
                    self._decide(taken, logits, output)
                return output
            finally:
                self._chunks = None

        return call

    # --- taking and keeping ------------------------------------------------------------------

    def _take(
        self,
        sampler: Any,
        logits: Any,
        batch: Any,
        draft_logits: Any = None,
        invalid_drafts: Any = None,
    ) -> _Taken | None:
        size = snapshot.size_bytes(logits, batch, draft_logits)
        if reason := self._choice.too_much(size, self._kept_bytes):
            self._write(reason=reason)
            return None
        try:
            return _Taken(sampler, logits, batch, draft_logits, invalid_drafts)
        except Exception as error:  # noqa: BLE001 - the engine must go on whatever it looks like
            self._skip(error)
            return None

    def _decide(self, taken: _Taken, logits: Any, output: Any) -> None:
        assert self._chunks is not None
        try:
            taken.finish(output, self._chunks, logits)
            held = traits({**taken.inputs, **taken.outputs}, taken.flags)
            if self._choice.keeps(held, self._seen):
                self._keep(taken, held)
        except Exception as error:  # noqa: BLE001 - the engine must go on whatever it looks like
            self._skip(error)

    def _keep(self, taken: _Taken, held: frozenset[str]) -> None:
        entries = store.described(taken.inputs, taken.outputs, self._choice.shared_bytes)
        call = store.document(entries, taken.flags, taken.requests)
        name = store.call_id(call)
        tensors = {**taken.inputs, **taken.outputs}
        size = store.size_bytes(tensors)
        keeps = self._context.rank == 0 or size <= self._choice.shared_bytes
        if keeps and self._context.oracles is not None:
            store.keep(self._context.oracles, name, call, tensors)
        self._kept += 1
        self._kept_bytes += size
        self._seen |= held
        upstream = self._upstream or _Upstream()
        self._write(
            call=name,
            stored=keeps,
            size_bytes=size,
            traits=sorted(held),
            digests={entry["name"]: entry["digest"] for entry in entries},
            **upstream.digests(),
        )

    def _skip(self, error: Exception) -> None:
        self._write(reason=f"{type(error).__name__}: {error}")

    def _write(self, **fields: Any) -> None:
        record = {"type": "oracle", "step": max(self._context.step, 0), "number": self._calls - 1}
        self._context.write(record | fields)


class _Taken:
    """A call on its way: inputs before it runs, outputs after it."""

    def __init__(
        self, sampler: Any, logits: Any, batch: Any, draft_logits: Any, invalid_drafts: Any
    ) -> None:
        from vllm.v1.worker.gpu.spec_decode import rejection_sampler

        vocab_size = logits.shape[1]
        # vLLM's own limit, or whatever was put in its place for this run.
        limit = getattr(rejection_sampler, "get_max_chunk_logits", lambda _vocab_size: 1 << 30)
        self.flags = snapshot.flags(sampler, logits, int(limit(vocab_size)))
        self.requests = snapshot.request_ids(batch)
        self.inputs = snapshot.inputs(sampler, logits, batch, draft_logits, invalid_drafts)
        self.outputs: dict[str, Any] = {}

    def finish(self, output: Any, chunks: list[rebuild.Chunk], logits: Any) -> None:
        """Take what the call returned."""
        self.outputs = snapshot.outputs(output, chunks, logits.device)
        self.flags["chunks"] = len(chunks)
