"""Replays one made-up call of a large vocabulary, and judges what came back.

    python benchmarks/replay_large.py [--vocab 152064] [--requests 64] [--device cpu|cuda]
        [--python PYTHON]

Makes a call with K = 3, probabilistic drafts, top-k, top-p and a penalised request, runs it once
with replay off and once with it on, and lets the reference judge the result. Prints seconds an arm,
the child's peak memory, and the reference's seconds and peak; exits 1 when the arms differ or the
reference finds something.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tprig import evidence
from tprig.bundle.tensors import read_tensors
from tprig.checkers.oracle import convert
from tprig.checkers.oracle.bounds import require_bounds
from tprig.checkers.oracle.records import call_id
from tprig.checkers.reference import judge_call
from tprig.replay import Replayer, Replays

Arrays = dict[str, NDArray[Any]]
STEPS = 3
DEADLINE_S = 3600.0


def inputs(requests: int, vocab_size: int) -> Arrays:
    """A call of that size: every request has K drafts, of which the first is the likeliest."""
    rng = np.random.default_rng(0)
    rows, width = requests * (STEPS + 1), STEPS + 1
    logits = rng.standard_normal((rows, vocab_size), dtype=np.float32) * np.float32(3)
    local = np.tile(np.arange(width, dtype=np.int32), requests)
    ids = rng.integers(0, vocab_size, rows).astype(np.int32)
    ids[1:] = np.where(local[1:] == 1, logits[:-1].argmax(axis=1), ids[1:])
    drafts = rng.standard_normal((requests, STEPS, vocab_size), dtype=np.float32)
    slots = np.arange(requests)
    positions = np.tile(np.arange(20, 20 + width), requests)
    bounds = np.arange(0, rows + 1, width, dtype=np.int32)
    return {
        "logits": logits,
        "draft_logits": drafts,
        "input_ids": ids,
        "positions": positions,
        "logits_indices": np.arange(rows),
        "expanded_idx_mapping": np.repeat(slots, width).astype(np.int32),
        "expanded_local_pos": local,
        "idx_mapping": slots.astype(np.int32),
        "idx_mapping_np": slots,
        "cu_num_logits": bounds,
        "cu_num_logits_np": bounds,
        "rng": np.zeros(0, dtype=np.uint8),
        **_state(rng, requests, vocab_size),
    }


def _state(rng: np.random.Generator, requests: int, vocab_size: int) -> Arrays:
    zeros = np.zeros(requests, dtype=np.int32)
    ones = np.ones(requests, dtype=np.float32)
    first = np.arange(requests) == 0
    whole = dict.fromkeys(
        ("num_allowed_token_ids", "num_logit_bias", "num_stop_token_ids", "num_bad_words"), zeros
    )
    return {
        **whole,
        "seq_lens": zeros + 24,
        "seq_lens_cpu_upper_bound": zeros + 24,
        "temperature": ones * np.float32(0.8),
        "top_k": zeros + 50,
        "top_p": ones * np.float32(0.95),
        "min_p": ones * 0,
        "seeds": rng.integers(0, 2**31, requests),
        "repetition_penalty": np.where(first, np.float32(1.1), ones),
        "frequency_penalty": ones * 0,
        "presence_penalty": ones * 0,
        "min_lens": zeros,
        "prompt_len": zeros + 10,
        "prefill_len": zeros + 10,
        "total_len": zeros + 21,
        "num_logprobs": zeros + 20,
        "needs_logits_processing": first | True,
        "use_penalty": first,
        "use_logit_bias": first & False,
        "prompt_bin_mask": np.zeros((1, -(-vocab_size // 32)), dtype=np.int32),
        "output_bin_counts": np.ones((1, vocab_size), dtype=np.int32),
    }


def placeholders(requests: int) -> Arrays:
    """What stands for production's outputs, which nobody made."""
    return {
        "num_verified": np.ones(requests, dtype=np.int32),
        "num_sampled": np.ones(requests, dtype=np.int32),
        "num_rejected": np.full(requests, STEPS, dtype=np.int32),
        "sampled": np.zeros(requests, dtype=np.int64),
        "rng_after": np.zeros(0, dtype=np.uint8),
    }


def stored(root: Path, given: Arrays, returned: Arrays, requests: int) -> evidence.CapturedCall:
    """Write the call as a worker would."""
    entries = [
        {
            "name": name,
            "role": "input" if name in given else "output",
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "digest": hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).hexdigest(),
        }
        for name, array in sorted({**given, **returned}.items())
    ]
    rows, vocab_size = given["logits"].shape
    flags = evidence.CallFlags(
        vllm_version="0",
        # Of no device: nothing is restored, and nothing compared with production.
        device="cuda",
        device_name="none",
        vocab_size=vocab_size,
        max_num_reqs=requests,
        max_model_len=64,
        num_speculative_steps=STEPS,
        logprobs_mode="processed_logprobs",
        use_fp64_gumbel=False,
        return_sampling_mask=False,
        verification="standard",
        top_k_ties="all",
        chunk_logits=rows,
        logits_stride=vocab_size,
        chunks=1,
    )
    call = evidence.CapturedCall(
        version=evidence.CALL_VERSION,
        flags=flags,
        requests=[f"r{i}" for i in range(requests)],
        tensors=msgspec.convert(entries, list[evidence.CallTensor]),
    )
    root.mkdir(parents=True)
    (root / "call.json").write_bytes(msgspec.json.encode(call))
    save_file({**given, **returned}, root / "tensors.safetensors")
    return call


def main() -> int:
    """Make, replay, judge."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vocab", type=int, default=152_064)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--python", default=sys.executable)
    arguments = parser.parse_args()
    given = inputs(arguments.requests, arguments.vocab)
    with tempfile.TemporaryDirectory(prefix="replay-large-") as folder:
        root = Path(folder)
        call = stored(root / "call", given, placeholders(arguments.requests), arguments.requests)
        require_bounds(call, {**given, **placeholders(arguments.requests)})
        how = Replays(python=arguments.python, device=arguments.device, repetitions=1)
        results = []
        with Replayer(how, root / "log") as child:
            for arm in ("off", "on"):
                for record in child.run(call_id(call), root / "call", arm, root / "k", DEADLINE_S):
                    if isinstance(record, evidence.ReplayFailure):
                        raise SystemExit(f"{arm}: {record.error}: {record.message}")
                    results.append(record)
                    print(f"replay {arm}: {record.elapsed_ns / 1e9:.1f} s", flush=True)
        peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        print(f"the replaying process: at most {peak_bytes / 2**30:.2f} GiB")
        off, on = results
        apart = [name for name, digest in off.digests.items() if on.digests[name] != digest]
        print(f"outputs that differ between the arms: {apart or 'none'}")
        failures = judged(call, given, read_tensors(root, f"k/{on.kept}.safetensors"))
    return 1 if apart or failures else 0


def judged(call: evidence.CapturedCall, given: Arrays, returned: Arrays) -> int:
    """Let the reference judge; returns how much it found."""
    start_s = time.monotonic()
    read = convert.sampler_call(call, given, replay=True)
    found = judge_call(read, convert.sampler_result(call, returned))
    print(f"the reference: {time.monotonic() - start_s:.1f} s, {len(found.failures)} failures")
    for failure in found.failures[:5]:
        print(f"  {failure}")
    return len(found.failures)


if __name__ == "__main__":
    sys.exit(main())
