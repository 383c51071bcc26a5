"""Runs captured calls of the rejection sampler again, in a process with no engine.

    python -m tprig_inject.replay --socket FD --platform cpu|cuda

Serves one request after another on the inherited socket until the client is gone. What it is given
has been validated by the client: vLLM's kernels follow raw indices, and would follow wrong ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform as machine
import socket
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tprig_inject import distribution, process, seams
from tprig_inject.channel import Channel
from tprig_inject.hooks import Hooks

SEAMS = (
    "rejection_sampler.call",
    "rejection_sampler.verify",
    "rejection_sampler.init",
    "sampler.init",
    "request_state.init",
)
"""What a replay rests on."""


def main() -> None:
    """Serve replays."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--platform", choices=("cpu", "cuda"), required=True)
    arguments = parser.parse_args()
    process.die_with_parent(os.getppid())
    channel = Channel(socket.socket(fileno=arguments.socket))
    try:
        channel.send({"type": "replayer", **_warm(arguments.platform)})
    except Exception as error:  # noqa: BLE001 - the client tells the user whatever it was
        traceback.print_exc()
        channel.send({"type": "failed", "error": type(error).__name__, "message": str(error)})
        return
    for message in channel:
        for answer in answers(message, arguments.platform):
            channel.send(answer)
        channel.send({"type": "arm-done"})


def _warm(platform: str) -> dict[str, Any]:
    """Import what a replay needs, and tell what that is."""
    distribution.supply()
    if platform == "cpu":
        # First: it is what makes vLLM's buffers do without pinned memory.
        import vllm.v1.worker.cpu.shm

        from tprig_inject import interpreter

        interpreter.supply()
    import torch
    import vllm
    import vllm.v1.worker.gpu.spec_decode.rejection_sampler

    from tprig_inject.oracle import snapshot

    return {
        "vllm_version": vllm.__version__,
        "vllm_path": str(Path(vllm.__file__).parent),
        "versions": {"python": machine.python_version(), "torch": torch.__version__},
        "device_name": snapshot.device_name(platform),
        "replays_masks": _replays_masks(),
        "top_k_ties": snapshot.top_k_ties(),
        "seams": [r for r in seams.report(seams.SEAMS) if r["name"] in SEAMS],
    }


def _replays_masks() -> bool:
    """Whether the rejection sampler takes masks; the plain one took them a version before."""
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    return hasattr(rejection_sampler, "SamplingMaskTensors")


def answers(message: dict[str, Any], device: str) -> Iterator[dict[str, Any]]:
    """One record per repetition, or why there is none.

    Args:
        message: `call` (id), `folder` (holds `call.json` and tensors), `arm`, `repetitions`,
            `keep` (folder for outputs that differ from production's), `faults`.
        device: where it runs.
    """
    try:
        yield from _replayed(message, device)
    except Exception as error:  # noqa: BLE001 - the vLLM under test may fail in any way
        traceback.print_exc()
        yield {
            "type": "replay-failure",
            "call": message["call"],
            "arm": message["arm"],
            "error": type(error).__name__,
            "message": str(error),
        }


def _replayed(message: dict[str, Any], device: str) -> Iterator[dict[str, Any]]:
    from safetensors.torch import load_file

    from tprig_inject.oracle import faults, rebuild
    from tprig_inject.recorders.stages import tensor_digest

    hooks = Hooks()
    for name in message["faults"]:
        faults.plant(hooks, name)
    folder = Path(message["folder"])
    call = json.loads((folder / "call.json").read_text())
    tensors = load_file(folder / "tensors.safetensors")
    given = {e["name"] for e in call["tensors"] if e["role"] == "input"} - {"rng"}
    produced = {e["name"]: e["digest"] for e in call["tensors"] if e["role"] == "output"}
    same_device = call["flags"]["device"] == device
    arm = rebuild.Arm(tensors, call["flags"], device, return_sampling_mask=message["arm"] == "on")
    for repetition in range(message["repetitions"]):
        start_ns = time.monotonic_ns()
        returned = arm.run(tensors["rng"] if same_device else None)
        elapsed_ns = time.monotonic_ns() - start_ns
        digests = {name: tensor_digest(tensor) for name, tensor in returned.items()}
        differing = {n: t for n, t in returned.items() if produced.get(n) != digests[n]}
        after = arm.inputs()
        yield {
            "type": "replayed",
            "call": message["call"],
            "arm": message["arm"],
            "repetition": repetition,
            "elapsed_ns": elapsed_ns,
            "digests": digests,
            "mutated": sorted(
                name
                for name in given
                if name not in after
                or rebuild.first_difference(tensors[name], after[name]) is not None
            ),
            "kept": _kept(Path(message["keep"]), differing),
        }


def _kept(folder: Path, tensors: dict[str, Any]) -> str | None:
    """Keep outputs that production did not return, once for equal ones; returns their id."""
    from safetensors.torch import save

    if not tensors:
        return None
    data = save(tensors)
    name = hashlib.blake2b(data, digest_size=16).hexdigest()
    target = folder / f"{name}.safetensors"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return name


if __name__ == "__main__":
    main()
    # At once: to finalize an interpreter that has imported vLLM takes most of a second.
    os._exit(0)
