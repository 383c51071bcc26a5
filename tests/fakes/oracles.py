"""A literal captured call, as a worker would have taken it, and replays of it.

One request `a` with drafts 5, 9 and 12. Each row of logits leaves a single token, so that what
the call must return follows without a random draw: 5 and 9 are accepted, 12 is refused, and 6 is
recovered in its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tests.fakes import bundles, histories
from tprig import evidence
from tprig.bundle import Writer
from tprig.checkers.oracle.records import call_id, digest
from tprig.history import CallHistory, ReplayHistory, RunHistory

RUN = "oracle"
STEP = 1
TARGETS = (5, 9, 6, 2)
DRAFTS = (5, 9, 12)
VOCAB_SIZE, TOP_K, SLOT, SLOTS = 16, 3, 2, 4
Arrays = dict[str, NDArray[Any]]

FLAGS = evidence.CallFlags(
    vllm_version="0.32.0",
    device="cpu",
    device_name="A CPU",
    vocab_size=VOCAB_SIZE,
    max_num_reqs=SLOTS,
    max_model_len=32,
    num_speculative_steps=3,
    logprobs_mode="processed_logprobs",
    use_fp64_gumbel=False,
    return_sampling_mask=False,
    verification="standard",
    top_k_ties="all",
    chunk_logits=64,
    logits_stride=VOCAB_SIZE,
    chunks=1,
)


def inputs() -> Arrays:
    """What the call reads."""
    logits = np.full((4, VOCAB_SIZE), -np.inf, dtype=np.float32)
    logits[np.arange(4), TARGETS] = 1.5
    one = np.ones(1, dtype=np.int32)
    return {
        "logits": logits,
        "input_ids": np.array([3, *DRAFTS], dtype=np.int32),
        "positions": np.arange(2, 6),
        "logits_indices": np.arange(4),
        "expanded_idx_mapping": np.full(4, SLOT, dtype=np.int32),
        "expanded_local_pos": np.arange(4, dtype=np.int32),
        "idx_mapping": np.array([SLOT], dtype=np.int32),
        "idx_mapping_np": np.array([SLOT]),
        "cu_num_logits": np.array([0, 4], dtype=np.int32),
        "cu_num_logits_np": np.array([0, 4], dtype=np.int32),
        "seq_lens": one * 6,
        "seq_lens_cpu_upper_bound": one * 6,
        "temperature": np.ones(1, dtype=np.float32),
        "top_k": one * TOP_K,
        "top_p": np.ones(1, dtype=np.float32),
        "min_p": np.zeros(1, dtype=np.float32),
        "seeds": np.array([7]),
        "repetition_penalty": np.ones(1, dtype=np.float32),
        "frequency_penalty": np.zeros(1, dtype=np.float32),
        "presence_penalty": np.zeros(1, dtype=np.float32),
        "num_allowed_token_ids": one * 0,
        "num_logit_bias": one * 0,
        "min_lens": one * 2,
        "num_stop_token_ids": one * 0,
        "num_bad_words": one * 0,
        "prompt_len": one * 2,
        "prefill_len": one * 2,
        "total_len": one * 3,
        "num_logprobs": one * 0,
        "needs_logits_processing": np.ones(1, dtype=np.bool_),
        "use_penalty": np.zeros(1, dtype=np.bool_),
        "use_logit_bias": np.zeros(1, dtype=np.bool_),
        "rng": np.arange(16, dtype=np.uint8),
    }


def outputs() -> Arrays:
    """What it returned."""
    # Rows that emit nothing have the scores of token 0.
    tokens = np.array([[5], [9], [6], [0]])
    return {
        "num_verified": np.array([3], dtype=np.int32),
        "num_sampled": np.array([3], dtype=np.int32),
        "num_rejected": np.array([1], dtype=np.int32),
        "sampled": np.array([5, 9, 6]),
        "processed_logits": inputs()["logits"],
        "logprob_token_ids": tokens,
        "logprobs": np.array([[0.0], [0.0], [0.0], [-np.inf]], dtype=np.float32),
        "ranks": np.array([1, 1, 1, VOCAB_SIZE]),
        "cu_num_generated": np.array([0, 4]),
        "rng_after": inputs()["rng"],
    }


def mask() -> Arrays:
    """What replay returns beside it."""
    bits = np.zeros((3, 16), dtype=np.uint8)
    bits[np.arange(3), TARGETS[:3]] = 1
    return {
        "mask_width": np.array([TOP_K]),
        "mask_counts": np.array([1, 1, 1, 0], dtype=np.int32),
        "mask_token_ids": np.array(TARGETS[:3], dtype=np.int32),
        "mask_bits": np.packbits(bits, axis=1, bitorder="little"),
    }


def captured(
    given: Mapping[str, NDArray[Any]] | None = None,
    returned: Mapping[str, NDArray[Any]] | None = None,
    flags: evidence.CallFlags = FLAGS,
) -> CallHistory:
    """A call that is sound in itself: its digests are those of its tensors."""
    roles = {"input": given or inputs(), "output": returned or outputs()}
    entries = [
        msgspec.convert(
            {
                "name": name,
                "role": role,
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "digest": digest(array),
            },
            evidence.CallTensor,
        )
        for role, arrays in roles.items()
        for name, array in arrays.items()
    ]
    call = evidence.CapturedCall(
        version=evidence.CALL_VERSION,
        flags=flags,
        requests=["a"],
        tensors=sorted(entries, key=lambda entry: entry.name),
    )
    tensors = {**roles["input"], **roles["output"]}
    return CallHistory(call_id(call), call, lambda: tensors)


def with_tensors(call: CallHistory, **changes: NDArray[Any]) -> CallHistory:
    """The call with tensors that were changed after it was stored."""
    tensors = {**call.tensors(), **changes}
    return dataclasses.replace(call, tensors=lambda: tensors)


def record(call: CallHistory, /, **changes: Any) -> evidence.OracleCall:  # noqa: ANN401 - its fields
    """What a rank's stream says of the call."""
    fields = {
        "step": STEP,
        "number": 0,
        "call": call.id,
        "stored": True,
        "size_bytes": 1024,
        "traits": ["accepted", "random", "recovered"],
        "digests": {t.name: t.digest for t in call.call.tensors},
        "hidden": "1" * 32,
    }
    return evidence.OracleCall(**{**fields, **changes})


def replayed(
    call: CallHistory,
    arm: evidence.ReplayArm,
    repetition: int,
    **changes: Any,  # noqa: ANN401 - its fields
) -> evidence.Replayed:
    """A repetition that returned what production did, and with replay on the mask."""
    names = {t.name for t in call.call.tensors if t.role == "output"}
    digests = {name: digest(array) for name, array in call.tensors().items() if name in names}
    if arm == "on":
        digests |= {name: digest(array) for name, array in mask().items()}
    fields = {
        "call": call.id,
        "arm": arm,
        "repetition": repetition,
        "elapsed_ns": 1_000_000,
        "digests": digests,
        "mutated": [],
        "kept": KEPT if arm == "on" else None,
    }
    return evidence.Replayed(**{**fields, **changes})


KEPT = "2" * 32


def replay(
    call: CallHistory,
    records: Sequence[evidence.ReplayRecord] | None = None,
    kept: Mapping[str, NDArray[Any]] | None = None,
    **changes: Any,  # noqa: ANN401 - its fields
) -> ReplayHistory:
    """Two repetitions in each arm, all of them exact."""
    if records is None:
        records = [replayed(call, arm, n) for arm in _ARMS for n in range(2)]
    fields = {
        "version": evidence.SCHEMA_VERSION,
        "id": "replay",
        "started": "2026-12-01T08:00:20.000000Z",
        "python": "/usr/bin/python3",
        "device": "cpu",
        "device_name": "A CPU",
        "vllm_version": "0.32.0",
        "vllm_path": "/venv/vllm",
        "versions": {"torch": "2.13.0"},
        "repetitions": 2,
        "seams": [],
        "replays_masks": True,
        "planned": [evidence.PlannedCall(call=call.id, arms=list(_ARMS))],
        "top_k_ties": "all",
    }
    held = mask() if kept is None else kept
    return ReplayHistory(
        id="replay",
        replay=evidence.Replay(**{**fields, **changes}),
        results=histories.stream("replays/replay/results.jsonl", records),
        outputs=lambda _name: held,
    )


_ARMS: tuple[evidence.ReplayArm, ...] = ("off", "on")


def run(
    call: CallHistory | None = None,
    replays: Sequence[ReplayHistory] | None = None,
    records: Mapping[int, evidence.OracleCall] | None = None,
) -> RunHistory:
    """The run in which the call was captured and verified.

    Args:
        call: as it is stored.
        replays: of it.
        records: what each rank's stream says of it.
    """
    call = captured() if call is None else call
    said = {0: record(call)} if records is None else records
    verified = evidence.Verified(
        request="a", draft_token_ids=list(DRAFTS), sampled_token_ids=[5, 9, 6], rejected=1
    )
    verification = evidence.Verification(step=STEP, requests=[verified])
    sampling = evidence.Sampling(temperature=1.0, max_tokens=4, seed=7, top_k=TOP_K)
    request = evidence.Request(id="a", prompt_token_ids=[1, 2], arrival_step=0, sampling=sampling)
    return RunHistory(
        id=RUN,
        run=evidence.Run(
            id=RUN,
            engine=f"engine-{RUN}",
            test="suites/test_oracle.py::test_oracle[tp1]",
            recorders=["verification", "oracle"],
            faults=[],
            started="2026-12-01T08:00:10.000000Z",
            elapsed_s=0.1,
            complete=True,
            rank_streams=len(said),
        ),
        workload=evidence.Workload(
            profile="oracle", seed=0, vocab_size=VOCAB_SIZE, requests=[request]
        ),
        ranks={
            rank: histories.stream(f"runs/{RUN}/ranks/rank{rank}.jsonl", [one, verification])
            for rank, one in said.items()
        },
        engine=histories.engine(f"engine-{RUN}", tp=len(said)),
        calls={call.id: call},
        replays=tuple([replay(call)] if replays is None else replays),
    )


def claim(tp: int = 1) -> evidence.Claim:
    """That the run's captured calls are exact."""
    return histories.claim("oracle", {"run": RUN}, tp=tp, minima={"calls": 1, "exact": 1})


def returning(change: Callable[[dict[str, str]], None], *, always: bool = False) -> RunHistory:
    """The run, had the last repetition (or every one) returned something else."""
    call = captured()
    results: list[evidence.ReplayRecord] = []
    for arm in _ARMS:
        for number in range(2):
            one = replayed(call, arm, number)
            if always or (arm, number) == ("on", 1):
                digests = dict(one.digests)
                change(digests)
                one = msgspec.structs.replace(one, digests=digests)
            results.append(one)
    return run(call, [replay(call, results)])


# --- in a bundle -------------------------------------------------------------------------------


def write(root: Path, *, tensors: Mapping[str, NDArray[Any]] | None = None) -> Path:
    """Write the literal run as a sealed bundle, with its call, its replay and a plan.

    Args:
        root: a folder that does not exist yet.
        tensors: stored in the place of the call's own.
    """
    call = captured()
    one = run(call)
    writer = Writer(root)
    writer.document("plan.json", histories.plan([claim()]))
    writer.document("environment.json", bundles.ENVIRONMENT)
    ledger = histories.stream("ledger.jsonl", bundles._ledger(histories.plan([claim()])))
    bundles._write_stream(writer, "ledger", writer.bundle, ledger)
    bundles._write_engine(writer, histories.engine(f"engine-{RUN}"))
    whole = dataclasses.replace(
        one,
        outputs=histories.stream(f"runs/{RUN}/outputs.jsonl", []),
        steps=histories.stream(f"runs/{RUN}/steps.jsonl", []),
    )
    bundles._write_run(writer, whole)
    store(writer, call, tensors)
    (again,) = one.replays
    writer.document(f"replays/{again.id}/replay.json", again.replay)
    bundles._write_stream(writer, "replay", again.id, again.results)
    save_file(dict(mask()), writer.path(f"replays/{again.id}/outputs/{KEPT}.safetensors"))
    writer.seal()
    return root


def store(
    writer: Writer, call: CallHistory, tensors: Mapping[str, NDArray[Any]] | None = None
) -> None:
    """Put a call where workers put theirs."""
    writer.document(f"oracles/{call.id}/call.json", call.call)
    held = call.tensors() if tensors is None else tensors
    save_file(dict(held), writer.path(f"oracles/{call.id}/tensors.safetensors"))
