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

from tprig_inject import distribution, process
from tprig_inject.channel import Channel

REQUEST_BYTES = 1 << 16


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
        channel.send(failed(error))
        return
    serve(control, channel)


def failed(error: Exception) -> dict[str, Any]:
    """What the client hears when vLLM cannot be imported, or a host not forked."""
    return {"type": "failed", "error": type(error).__name__, "message": str(error)}


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
    distribution.supply()
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
            if (asked := receive(control)) is None:
                return
            channel.send(answer(control, *asked))


def receive(control: socket.socket) -> tuple[dict[str, Any], socket.socket] | None:
    """The next request with the host's end of its channel; None when the client is gone."""
    data, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES, 1)
    if not data:
        return None
    sock = socket.socket(fileno=fds[0])
    sock.set_inheritable(False)
    # The client sends the next request only after it was answered: nothing follows the newline.
    while not data.endswith(b"\n"):
        if not (more := control.recv(REQUEST_BYTES)):
            return None
        data += more
    return json.loads(data), sock


def answer(control: socket.socket, request: dict[str, Any], sock: socket.socket) -> dict[str, Any]:
    """Fork the host that is asked for, and tell its process id, or why there is none."""
    with sock:
        try:
            pid = fork_host(control, sock, request)
        except OSError as error:
            return failed(error)
    return {"type": "forked", "engine": request["engine"], "pid": pid}


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
    parent_pid = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        process.die_with_parent(parent_pid)
        control.close()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        from tprig_inject import host

        code = host.main(Channel(sock), request)
    except BaseException:  # noqa: BLE001 - nothing may return into the template's loop
        with contextlib.suppress(OSError):
            traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            # Where the disk is full, there is no room for what they still hold.
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
    # At once: to finalize an interpreter that has imported vLLM takes most of a second.
    os._exit(0)
