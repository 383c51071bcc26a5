"""Records each sampling call: what was drafted, what was sampled, how much was rejected."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

from tprig_inject.context import Context
from tprig_inject.hooks import Layer

SEAMS = ("model_runner.execute_model", "model_runner.sample")


def install(context: Context) -> None:
    """Write one `verification` record per call of `GPUModelRunner.sample`."""

    def wrap(original: Any) -> Any:
        def sample(
            self: Any, hidden_states: Any, input_batch: Any, *args: Any, **kwargs: Any
        ) -> Any:
            drafts = _drafts(input_batch)
            output = original(self, hidden_states, input_batch, *args, **kwargs)
            context.write(_record(context.step, input_batch, drafts, output[0]))
            return output

        return sample

    context.wrap("model_runner.sample", Layer.RECORDER, wrap)


def _drafts(input_batch: Any) -> list[list[int]]:
    """Per request the draft tokens under verification: each logits row but the first of it.

    Read before sampling, since the buffers behind `input_ids` are used again.
    """
    rows = input_batch.input_ids[input_batch.logits_indices].tolist()
    bounds = input_batch.cu_num_logits_np.tolist()
    return [rows[low + 1 : high] for low, high in pairwise(bounds)]


@lru_cache(maxsize=4096)
def external_id(request: str) -> str:
    """The id that the client gave: vLLM appends `-` and eight random characters to it."""
    return request.rpartition("-")[0] or request


def _record(step: int, input_batch: Any, drafts: list[list[int]], output: Any) -> dict[str, Any]:
    sampled = output.sampled_token_ids.tolist()
    counts = output.num_sampled.tolist()
    rejected = output.num_rejected.tolist()
    return {
        "type": "verification",
        "step": step,
        "requests": [
            {
                "request": external_id(request),
                "draft_token_ids": drafts[i],
                "sampled_token_ids": sampled[i][: counts[i]],
                "rejected": rejected[i],
                "scheduled": int(input_batch.num_scheduled_tokens[i]),
            }
            for i, request in enumerate(input_batch.req_ids)
        ],
    }
