"""Makes calls of vLLM's own rejection sampler, captures them, and runs them again."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tprig_inject import interpreter, replay
from tprig_inject.hooks import Hooks
from tprig_inject.oracle import rebuild
from tprig_inject.seams import with_overrides
from tprig_inject.session import Session
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from tests.tprig.inject.foreign import rejection

VOCAB_SIZE, STEPS, SLOTS = 96, 3, 6
FLAGS = {
    "vocab_size": VOCAB_SIZE,
    "max_num_reqs": SLOTS,
    "max_model_len": 32,
    "num_speculative_steps": STEPS,
    "logprobs_mode": "processed_logprobs",
    "use_fp64_gumbel": False,
    "verification": "standard",
    "chunk_logits": 1 << 30,
    "logits_stride": VOCAB_SIZE,
}
Records = list[dict[str, Any]]


def call_inputs(seed: int, *, greedy: bool, probabilistic: bool) -> dict[str, Any]:
    """A random call: four requests in slots of their own, each with another kind of sampling.

    The third is within its prefill, so its drafts are placeholders.
    """
    rng = np.random.default_rng(seed)
    drafts = [3, 2, 3, 1]
    bounds = np.concatenate([[0], np.cumsum(np.array(drafts) + 1)]).astype(np.int32)
    rows, slots = int(bounds[-1]), rng.permutation(SLOTS)[:4]
    widths = np.diff(bounds)
    logits = rng.normal(scale=3.0, size=(rows, VOCAB_SIZE)).astype(np.float32)
    # Tokens in pairs, so that a pair may lie on the top-k edge.
    logits[:, 1::2] = logits[:, ::2]
    ids = rng.integers(0, VOCAB_SIZE, rows).astype(np.int32)
    local = (np.arange(rows) - np.repeat(bounds[:-1], widths)).astype(np.int32)
    # What the target likes best is often accepted.
    ids[1:] = np.where(local[1:] > 0, logits[:-1].argmax(axis=1), ids[1:])
    start = np.array([9, 12, 4, 7])
    state = _state(rng, greedy=greedy)
    tensors = {
        "logits": logits,
        "input_ids": ids,
        "positions": np.repeat(start, widths) + local,
        "logits_indices": np.arange(rows),
        "expanded_idx_mapping": np.repeat(slots, widths).astype(np.int32),
        "expanded_local_pos": local,
        "idx_mapping": slots.astype(np.int32),
        "idx_mapping_np": slots,
        "cu_num_logits": bounds,
        "cu_num_logits_np": bounds,
        "seq_lens": (start + widths).astype(np.int32),
        "seq_lens_cpu_upper_bound": (start + widths).astype(np.int32),
        **state,
    }
    if probabilistic:
        noise = rng.normal(size=(4, STEPS, VOCAB_SIZE))
        tensors["draft_logits"] = noise.astype(np.float32)
    return {name: torch.from_numpy(np.asarray(array)) for name, array in tensors.items()} | {
        "rng": torch.get_rng_state()
    }


def _state(rng: Any, *, greedy: bool) -> dict[str, Any]:
    ints = {
        "top_k": [VOCAB_SIZE if greedy else 7, 5, 40, 9],
        "num_logprobs": [-1, 4, 2, 0],
        "num_allowed_token_ids": [0, 0, 0, 30],
        "num_logit_bias": [0, 0, 2, 0],
        "min_lens": [2, 30, 2, 2],
        "num_stop_token_ids": [0, 3, 0, 0],
        "restore_when_all_masked": [0, 0, 0, 0],
        "num_bad_words": [2, 0, 0, 0],
        "prompt_len": [4, 5, 30, 3],
        "prefill_len": [4, 5, 30, 3],
        "total_len": [10, 13, 30, 8],
    }
    floats = {
        "temperature": [0.0 if greedy else 0.7, 0.9, 1.2, 1.0],
        "top_p": [1.0, 0.8, 1.0, 1.0],
        "min_p": [0.0, 0.0, 0.05, 0.0],
        "repetition_penalty": [1.0, 1.2, 1.0, 1.0],
        "frequency_penalty": [0.0, 0.2, 0.0, 0.0],
        "presence_penalty": [0.0, 0.1, 0.0, 0.0],
    }
    bools = {
        "needs_logits_processing": [True] * 4,
        "use_penalty": [False, True, False, False],
        "use_logit_bias": [False, True, True, True],
    }
    allowed = np.zeros((4, 30), dtype=np.int32)
    allowed[3] = rng.permutation(VOCAB_SIZE)[:30]
    return {
        **{name: np.array(values, dtype=np.int32) for name, values in ints.items()},
        **{name: np.array(values, dtype=np.float32) for name, values in floats.items()},
        **{name: np.array(values, dtype=np.bool_) for name, values in bools.items()},
        "seeds": rng.integers(-(2**63), 2**63 - 1, 4),
        "allowed_token_ids": allowed,
        "logit_bias_token_ids": np.array([[0, 0], [0, 0], [3, 8], [0, 0]], dtype=np.int32),
        "logit_bias": np.array([[0, 0], [0, 0], [2.5, -4], [0, 0]], dtype=np.float32),
        "stop_token_ids": np.tile(np.array([1, 2, 7], dtype=np.int32), (4, 1)),
        "bad_word_token_ids": np.array([[4, 5, 6]] + [[0, 0, 0]] * 3, dtype=np.int32),
        "bad_word_offsets": np.array([[0, 1, 3]] + [[0, 0, 0]] * 3, dtype=np.int32),
        "all_token_ids": rng.integers(0, VOCAB_SIZE, (4, 30)).astype(np.int32),
        "prompt_bin_mask": rng.integers(
            -(2**31), 2**31, (1, math.ceil(VOCAB_SIZE / 32)), dtype=np.int64
        ).astype(np.int32),
        "output_bin_counts": rng.integers(0, 3, (1, VOCAB_SIZE)).astype(np.int32),
    }


def capture(
    folder: str,
    recorders: list[str],
    calls: list[dict[str, Any]],
    rank: int = 0,
    seams: dict[str, Any] | None = None,
    *,
    compare: bool = False,
    exact: bool = False,
) -> dict[str, Any]:
    """Make calls with recorders in place, and once more without where that is compared.

    Args:
        folder: the bundle's `oracles`.
        recorders: with their options.
        calls: `seed`, `greedy`, `probabilistic`, `replay` of each, and whether logits are
            `gathered` on the way or pass a `custom` logits processor.
        rank: of this worker.
        seams: new shapes of seams.
        compare: whether to make the calls again.
        exact: whether vLLM's Triton kernel filters, as on a GPU, which keeps exactly k tokens.

    Returns:
        The `records`, whether each call returned the `same` without recorders, and whether all
        originals were `restored`.
    """
    rejection.prepare()
    topk_topp_sampler.HAS_TRITON = exact
    arms = [_arm(call) for call in calls]
    returned: list[Any] = []
    _stub(iter(zip(arms, calls, strict=True)), returned)
    originals = _standing()
    records: Records = []
    session = Session(Hooks(with_overrides(seams or {})))
    session.begin(
        write=records.append,
        recorders=recorders,
        faults=[],
        model_runner=object(),
        rank=rank,
        oracles=Path(folder),
    )
    for arm in arms:
        GPUModelRunner.execute_model(None, SimpleNamespace(total_num_scheduled_tokens=1))
        GPUModelRunner.sample(None, torch.ones(99, 2), arm.batch, None)
    session.end()
    again = arms if compare else []
    plain = [arm.rejection_sampler(arm.logits, arm.batch, arm.draft_logits) for arm in again]
    return {
        "records": records,
        "same": [_same(a, b) for a, b in zip(returned, plain, strict=False)],
        "restored": _standing() == originals,
    }


def _arm(call: dict[str, Any]) -> Any:
    tensors = call_inputs(call["seed"], greedy=call["greedy"], probabilistic=call["probabilistic"])
    arm = rebuild.Arm(tensors, FLAGS, "cpu", return_sampling_mask=call["replay"])
    arm.batch.req_ids = [f"r{i}-0123abcd" for i in range(arm.batch.num_reqs)]
    arm.batch.num_tokens = len(arm.batch.input_ids)
    arm.batch.num_draft_tokens = 9
    if call.get("custom"):
        arm.sampler.logits_processors.append(_Custom())
    return arm


class _Custom:
    """A logits processor that no record can hold."""

    def apply(self, logits: Any, _ctx: Any) -> Any:
        return logits


def _stub(given: Any, returned: list[Any]) -> None:
    def execute_model(self: Any, scheduler_output: Any) -> None:
        pass

    def sample(self: Any, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        arm, call = next(given)
        if call.get("gathered"):
            half = VOCAB_SIZE // 2
            LogitsProcessor._gather_logits(arm, arm.logits[:, half * call["part"] :][:, :half])
        output = arm.rejection_sampler(arm.logits, input_batch, arm.draft_logits)
        returned.append(output)
        return output, output.num_sampled, output.num_rejected

    def gather(self: Any, logits: Any) -> Any:
        return self.logits

    GPUModelRunner.execute_model, GPUModelRunner.sample = execute_model, sample
    LogitsProcessor._gather_logits = gather


def _standing() -> list[Any]:
    return [
        GPUModelRunner.__dict__["sample"],
        LogitsProcessor.__dict__["_gather_logits"],
        RejectionSampler.__dict__["__call__"],
        RejectionSampler.__dict__["_verify"],
    ]


def _same(a: Any, b: Any) -> bool:
    counts = torch.maximum(a.num_sampled, torch.ones_like(a.num_sampled))
    return all(
        torch.equal(x, y)
        for x, y in (
            (a.num_sampled, b.num_sampled),
            (a.num_rejected, b.num_rejected),
            (
                rebuild.written(a.sampled_token_ids, counts),
                rebuild.written(b.sampled_token_ids, counts),
            ),
            (a.logprobs_tensors.logprobs, b.logprobs_tensors.logprobs),
        )
    )


def run_again(
    folder: str, call: str, arm: str, keep: str, faults: list[str], repetitions: int = 3
) -> Records:
    """What a replay tells of one arm of a stored call."""
    interpreter.supply()
    message = {
        "call": call,
        "folder": str(Path(folder) / call),
        "arm": arm,
        "repetitions": repetitions,
        "keep": keep,
        "faults": faults,
    }
    return list(replay.answers(message, "cpu"))
