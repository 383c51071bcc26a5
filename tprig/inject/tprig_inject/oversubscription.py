"""Lets several ranks share a GPU, so that tensor parallelism with real NCCL runs on one.

NCCL 2.30 and newer allow it when `NCCL_MULTI_RANK_GPU_ENABLE=1`; older ones report a duplicate
GPU. What is left is to make vLLM count ranks where it counts devices.
"""

from __future__ import annotations

from typing import Any


def allow(ranks_per_device: int) -> None:
    """Pretend to that many times the devices, and map each pretended one to a real one."""
    import torch
    from vllm.platforms import current_platform

    real = torch.cuda.device_count
    platform: Any = type(current_platform)
    visible = platform.logical_device_id_to_visible_device_id

    def pretended() -> int:
        return int(real()) * ranks_per_device

    def to_real(_cls: Any, device_id: int) -> Any:
        return visible(device_id % int(real()))

    torch.accelerator.device_count = pretended
    platform.logical_device_id_to_visible_device_id = classmethod(to_real)
