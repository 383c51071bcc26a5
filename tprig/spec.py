"""EngineSpec: everything that decides what an engine does."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from tprig import evidence
from tprig.environment import redacted
from tprig.ras import Address

Platform = Literal["cpu", "cuda"]

_COMMON_ENVIRONMENT = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
_ENVIRONMENT: Mapping[Platform, Mapping[str, str]] = {
    "cpu": {
        **_COMMON_ENVIRONMENT,
        # Model Runner V2's kernels run in Triton's interpreter.
        "TRITON_INTERPRET": "1",
        # Cores are leased by us; vLLM's own binding fails for TP2 on one NUMA node.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        # Spares a C++ compiler and seconds of compilation; results are the same.
        "TORCHDYNAMO_DISABLE": "1",
    },
    "cuda": {
        **_COMMON_ENVIRONMENT,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # One sampler path for every GPU, and no compiler needed on the host.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        # Inductor times kernels that add up in different orders and takes the fastest: two engines
        # of one configuration then differ in the last bits, and none could be compared exactly.
        "TORCHINDUCTOR_DETERMINISTIC": "1",
        # What vLLM loads from its cache is compiled in another way than what it has just traced,
        # and rounds otherwise: the first engine and the second would differ.
        "VLLM_DISABLE_COMPILE_CACHE": "1",
    },
}
_ARGUMENTS: Mapping[Platform, Mapping[str, Any]] = {
    # A KV block must be a multiple of 32 on the CPU.
    "cpu": {"enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 64 << 20},
    # Both arms of a comparison live on the same devices at once.
    "cuda": {"gpu_memory_utilization": 0.3, "kv_cache_memory_bytes": 1 << 30},
}
# Custom all-reduce maps peers' memory, which ranks of one device have not.
_SHARED_ARGUMENTS = {"distributed_executor_backend": "mp", "disable_custom_all_reduce": True}
_SHARED_ENVIRONMENT = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """An engine, in full. Equal specs are one engine; `key` names it.

    Attributes:
        model: Folder of the target's checkpoint.
        platform: What the engine runs on.
        tensor_parallel_size: Ranks.
        python: Interpreter that has the vLLM under test.
        overlay: Folder that holds a `vllm` package to be taken before the installed one.
        arguments: vLLM's engine arguments beyond the platform's own, which they override.
        environment: Variables beyond the platform's own, which they override.
        core_process: True to run the engine core as a process of its own.
        ranks_per_device: Ranks that share each device; more than 1 needs NCCL 2.30.
        seams: New shapes of moved seams, by name.
        replica: Tells engines apart that are alike in everything else.
    """

    model: Path
    platform: Platform = "cpu"
    tensor_parallel_size: int = 1
    python: str = sys.executable
    tree: str | None = None
    overlay: Path | None = None
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    core_process: bool = False
    ranks_per_device: int = 1
    seams: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    replica: int = 0

    @property
    def engine_arguments(self) -> dict[str, Any]:
        """The arguments that vLLM's `EngineArgs` gets."""
        return {
            "model": str(self.model),
            "skip_tokenizer_init": True,
            "tensor_parallel_size": self.tensor_parallel_size,
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": -1,
            "seed": 0,
            **_ARGUMENTS[self.platform],
            **(_SHARED_ARGUMENTS if self.ranks_per_device > 1 else {}),
            **self.arguments,
        }

    @property
    def ras(self) -> Address | None:
        """Where the NCCL of this engine can be asked what it knows; None where it has none."""
        if self.platform != "cuda":
            return None
        return Address.of(self.process_environment)

    @property
    def process_environment(self) -> dict[str, str]:
        """The variables that are set for the engine's processes."""
        shared = _SHARED_ENVIRONMENT if self.ranks_per_device > 1 else {}
        return {**_ENVIRONMENT[self.platform], **shared, **self.environment}

    @property
    def device_count(self) -> int:
        """Devices that the engine needs."""
        return -(-self.tensor_parallel_size // self.ranks_per_device)

    @property
    def key(self) -> str:
        """SHA-256 over all of it, shortened to 12 hex digits."""
        what = {
            "python": self.python,
            "tree": self.tree,
            "overlay": str(self.overlay),
            "platform": self.platform,
            "arguments": self.engine_arguments,
            "environment": self.process_environment,
            "core_process": self.core_process,
            "ranks_per_device": self.ranks_per_device,
            "seams": self.seams,
            "replica": self.replica,
        }
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EngineSpec) and self.key == other.key

    def arm(self) -> evidence.Arm:
        """The record of this spec for the bundle."""
        return evidence.Arm(
            python=self.python,
            tree=self.tree,
            platform=self.platform,
            tensor_parallel_size=self.tensor_parallel_size,
            engine_args={
                name: msgspec.Raw(msgspec.json.encode(value))
                for name, value in sorted(self.engine_arguments.items())
            },
            environment=redacted(self.process_environment),
            model_digest=checkpoint_digest(self.model),
            core_process=self.core_process,
        )


def checkpoint_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of a checkpoint's files, in order of their names.

    Raises:
        OSError: if a file cannot be read.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    states = [(path, path.stat()) for path in files]
    return _digest(tuple((path, s.st_ino, s.st_size, s.st_mtime_ns) for path, s in states))


@cache
def _digest(files: tuple[tuple[Path, int, int, int], ...]) -> str:
    """Read once per process, however many engines serve a checkpoint: some have 100 GB.

    Args:
        files: path, inode, size in bytes, and time of change in nanoseconds.
    """
    total = hashlib.sha256()
    for path, *_ in files:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.name} {digest}\n".encode())
    return total.hexdigest()
