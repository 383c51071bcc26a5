"""The warm template: imports vLLM once, then forks a host for each engine that is asked for.

Importing vLLM takes most of an engine's start. The template pays for it once and then runs
nothing: no CUDA call and no parallel torch operation, either of which would break its children.
Plugins load after the fork, so recorders and faults are chosen per engine.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from tprig_inject import process
from tprig_inject.channel import Channel

REQUEST_BYTES_MAX = 1 << 20


def main() -> None:
    """Serve fork requests on the inherited socket until the client is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    arguments = parser.parse_args()
    # A client that is gone by now has closed the socket, which ends this process as well.
    process.die_with_parent(os.getppid())
    control = socket.socket(fileno=arguments.socket)
    channel = Channel(control)
    try:
        channel.send({"type": "warm", "pid": os.getpid(), **warm_up()})
    except Exception as error:  # noqa: BLE001 - the client tells the user whatever it was
        traceback.print_exc()
        channel.send({"type": "failed", "error": type(error).__name__, "message": str(error)})
        return
    serve(control, channel)


_COMMON = (
    "vllm.engine.arg_utils",
    "vllm.model_executor.models.config",
    "vllm.model_executor.models.qwen2",
    "vllm.model_executor.models.qwen3",
    "vllm.model_executor.models.qwen3_dflash",
    "vllm.model_executor.models.mimo",
    "vllm.model_executor.models.mimo_mtp",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.compilation.backends",
    "vllm.plugins.lora_resolvers.filesystem_resolver",
    "vllm.plugins.lora_resolvers.hf_hub_resolver",
    "vllm.renderers.hf",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.core",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.worker.gpu.model_states.default",
    "vllm.v1.worker.gpu.spec_decode.mtp.speculator",
    "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
    "vllm.v1.worker.gpu_worker",
)
_CPU = (
    "vllm.v1.worker.cpu.shm",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu.model_runner",
    "vllm.v1.attention.backends.cpu_attn",
)
"""What an engine imports on its way, so that its start does not pay for it; none is required."""


def warm_up() -> dict[str, Any]:
    """Import what every engine imports; returns `vllm_version` and `vllm_path`."""
    import vllm
    from vllm.platforms import current_platform

    for name in (*_COMMON, *(_CPU if current_platform.is_cpu() else ())):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # vLLM collects garbage ten times on its way to readiness. What the template holds is not
    # garbage: frozen, it is neither walked again nor copied page by page by the collector.
    gc.collect()
    gc.freeze()
    return {"vllm_version": vllm.__version__, "vllm_path": str(Path(vllm.__file__).parent)}


def serve(control: socket.socket, channel: Channel) -> None:
    """Fork on request, and report each child that ends."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([control.fileno(), wake_read], [], [])
        if wake_read in readable:
            os.read(wake_read, 4096)
            for report in ended_children():
                channel.send(report)
        if control.fileno() in readable:
            data, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 1)
            if not data:
                return
            request = json.loads(data)
            pid = fork_host(control, socket.socket(fileno=fds[0]), request)
            channel.send({"type": "forked", "engine": request["engine"], "pid": pid})


def ended_children() -> list[dict[str, Any]]:
    """Children that have ended since the last call, with their exit codes (negative: a signal)."""
    reports = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            code = os.waitstatus_to_exitcode(status)
            reports.append({"type": "ended", "pid": pid, "code": code})
    return reports


def fork_host(control: socket.socket, sock: socket.socket, request: dict[str, Any]) -> int:
    """Fork one engine host; returns its process id."""
    pid = os.fork()
    if pid:
        sock.close()
        return pid
    code = 1
    try:
        control.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        from tprig_inject import host

        code = host.main(Channel(sock), request)
    except BaseException:  # noqa: BLE001 - nothing may return into the template's loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
