"""Finds and loads what the inject folder offers to vLLM and Triton."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import Any

import torch
from tprig_inject import config, interpreter, oversubscription, plugin
from tprig_triton_cpu.compiler import InterpreterBackend
from tprig_triton_cpu.driver import InterpreterDriver
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from vllm import plugins
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON


def offered() -> dict[str, list[str]]:
    """The entry points of the two groups that are ours, by group."""
    return {
        group: [
            f"{entry.name} = {entry.value}"
            for entry in importlib.metadata.entry_points(group=group)
            if entry.value.startswith("tprig_")
        ]
        for group in ("vllm.general_plugins", "triton.backends")
    }


def load(settings: dict[str, Any] | None, *, times: int = 1) -> dict[str, Any]:
    """Let vLLM load its plugins, with the engine's settings published or without.

    Args:
        settings: of `config.Config`; the host is this process where its pid is None.
        times: how often.

    Returns:
        How often the interpreter was `supplied` and how many ranks were `allowed`; whether this
        process was `settled` and `watched`.
    """
    told: dict[str, Any] = {"supplied": 0, "allowed": []}

    def supply() -> None:
        told["supplied"] += 1

    interpreter.supply = supply
    oversubscription.allow = told["allowed"].append
    os.environ.pop(config.VARIABLE, None)
    if settings is not None:
        pid = os.getpid() if settings["host_pid"] is None else settings["host_pid"]
        config.Config(**{**settings, "host_pid": pid}).publish()
    plugin.load.cache_clear()
    for _ in range(times):
        plugins.plugins_loaded = False
        plugins.load_general_plugins()
    runtime = Path("/nowhere" if settings is None else settings["runtime"])
    told["settled"] = os.environ.get("TMPDIR") == str(runtime)
    told["watched"] = (runtime / f"{os.getpid()}.stacks").exists()
    return told


def backend() -> dict[str, Any]:
    """What Triton's `cpu` backend is and does."""
    compiler = InterpreterBackend.__new__(InterpreterBackend)
    driver = InterpreterDriver.__new__(InterpreterDriver)
    refused = {}
    for name, call in {
        "parse_options": lambda: compiler.parse_options({}),
        "add_stages": lambda: compiler.add_stages({}, None, None),
        "get_benchmarker": driver.get_benchmarker,
    }.items():
        try:
            call()
        except RuntimeError as error:
            refused[name] = str(error)
    return {
        "registered": backends["cpu"].compiler is InterpreterBackend
        and backends["cpu"].driver is InterpreterDriver,
        "vllm has triton": HAS_TRITON,
        "supports": [
            target
            for target in ("cpu", "cuda", "hip")
            if InterpreterBackend.supports_target(GPUTarget(target, 0, 0))
        ],
        "active": InterpreterDriver.is_active(),
        "device": str(driver.get_active_torch_device()),
        "target": driver.get_current_target().backend,
        "others active": [name for name, other in backends.items() if other.driver.is_active()],
        "refused": refused,
    }


def share_devices(ranks_per_device: int, real: int) -> dict[str, Any]:
    """What vLLM counts when ranks share that many real devices, and where each rank goes."""
    torch.cuda.device_count = lambda: real
    seen: list[int] = []
    platform: Any = type(current_platform)

    def visible(device_id: int) -> str:
        seen.append(device_id)
        return f"device {device_id}"

    platform.logical_device_id_to_visible_device_id = staticmethod(visible)
    oversubscription.allow(ranks_per_device)
    count = torch.accelerator.device_count()
    return {
        "count": count,
        "places": [
            current_platform.logical_device_id_to_visible_device_id(rank) for rank in range(count)
        ],
    }
