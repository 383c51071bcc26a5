"""An engine host: builds one engine, serves runs on it, and ends with it."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sys
import traceback
from collections import deque
from typing import Any

from tprig_inject import process, records, seams
from tprig_inject.channel import Channel
from tprig_inject.config import Config
from tprig_inject.recorders import broadcasts
from tprig_inject.session import Session
from tprig_inject.worker import hooks, imported_files, wrapped

LEASE_ID = "TPRIG_LEASE_ID"
"""The variable, and the start of the name of the descriptor, by which `gpu_scheduler` finds it."""


def main(channel: Channel, request: dict[str, Any]) -> int:
    """Serve one engine until it is stopped or the client is gone; returns the exit code.

    Args:
        channel: the client's end is the other one.
        request: `engine` (id), `runtime` (folder), `shm_prefix`, `log` (file), `platform`,
            `environment`, `engine_args`, `core_process`, `affinity` (cores or None).
    """
    try:
        _settle(request)
        host = Host(channel, request)
    except Exception as error:  # noqa: BLE001 - vLLM refuses configurations by any exception
        return _fail(channel, "refused", error)
    channel.send({"type": "ready"})
    return host.serve()


def _fail(channel: Channel, event: str, error: Exception) -> int:
    # Where the disk is full the log takes nothing; the client hears of the error all the same.
    with contextlib.suppress(OSError):
        traceback.print_exc()
    # Reaps children that have ended, which notes how: whoever failed may be one of them, and this
    # process is gone a moment after its last word.
    multiprocessing.active_children()
    channel.send(records.failure(event, error))
    return 1


def _settle(request: dict[str, Any]) -> None:
    """Make this process, and those that it will fork, one engine's."""
    _redirect(request["log"])
    if request["affinity"] is not None:
        os.sched_setaffinity(0, request["affinity"])
    os.environ.update(request["environment"])
    _carry_lease(os.environ.get(LEASE_ID))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(request["core_process"]))
    settings = Config(
        runtime=request["runtime"],
        shm_prefix=request["shm_prefix"],
        platform=request["platform"],
        host_pid=os.getpid(),
        forked=request["platform"] == "cpu",
        ranks_per_device=request["ranks_per_device"],
        seams=request["seams"],
    )
    settings.publish()
    process.settle(settings.place)
    process.watch(settings.place)
    _keep_frozen()
    if request["platform"] == "cpu":
        _fork_workers(request["shm_prefix"])


def _carry_lease(lease_id: str | None) -> None:
    """Show by whose lease this process, and what it forks, is there: to whoever is to end it.

    The kernel shows the environment with which a process began, which is the template's.
    """
    if lease_id:
        with contextlib.suppress(OSError):
            os.memfd_create(f"{LEASE_ID}={lease_id}")


def _redirect(log: str) -> None:
    """Send what vLLM logs to stdout and stderr, in every process, to the engine's log."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)
    for descriptor in (1, 2):
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - positional only
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _keep_frozen() -> None:
    """Leave the template's heap to its end: vLLM unfreezes it, and collects it twice, as it stops.

    That walks, and so copies, hundreds of megabytes in each process, which end next anyway.
    """
    gc.unfreeze = lambda: None


def _fork_workers(shm_prefix: str) -> None:
    """Let workers and engine core be forked, which vLLM's CPU platform rules out by itself.

    Nothing here has run a parallel operation before the fork, which is what it guards against.
    The rendezvous file names the CPU's shared memory, so it carries the engine's prefix.
    """
    import tempfile
    from uuid import uuid4

    import vllm.v1.engine.utils
    import vllm.v1.executor.multiproc_executor as executor

    def forking() -> Any:
        return multiprocessing.get_context("fork")

    executor.get_mp_context = forking
    vllm.v1.engine.utils.get_mp_context = forking
    executor.get_file_store_init_method = lambda: (
        f"file://{tempfile.gettempdir()}/{shm_prefix}{uuid4().hex}"
    )


class Host:
    """The engine and the loop around it."""

    def __init__(self, channel: Channel, request: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        self._channel = channel
        self._request = request
        self._statistics = records.Statistics()
        arguments = EngineArgs(
            **request["engine_args"],
            worker_extension_cls="tprig_inject.worker.WorkerExtension",
            disable_log_stats=False,
        )
        self._engine = LLMEngine.from_engine_args(
            arguments,
            stat_loggers=[lambda *_: self._statistics],
            enable_multiprocessing=request["core_process"],
        )

    def serve(self) -> int:
        """Do what the client asks for, one thing after another."""
        for message in self._channel:
            if message["do"] == "stop":
                self._stop()
                self._channel.send({"type": "stopped"})
                return 0
            try:
                self._do(message)
            except Exception as error:  # noqa: BLE001 - the engine under test may fail in any way
                return _fail(self._channel, "crashed", error)
        return 1

    def _do(self, message: dict[str, Any]) -> None:
        if message["do"] == "describe":
            self._channel.send({"type": "described", **self._describe()})
        elif message["do"] == "run":
            Run(self._channel, self._engine, self._statistics, message).perform()
        else:
            raise ValueError(f"unknown request {message['do']!r}")

    def _describe(self) -> dict[str, Any]:
        workers = self._engine.collective_rpc("tprig_describe")
        imported = imported_files()
        at_seams = set(wrapped())
        for worker in workers:
            imported.update(worker["imported"])
            at_seams.update(worker["wrapped"])
        said = records.description(self._engine, workers, imported)
        if self._request["core_process"]:
            (core,) = multiprocessing.active_children()
            said["pids"]["core"] = core.pid
        return {**said, "seams": seams.report(hooks().table), "wrapped": sorted(at_seams)}

    def _stop(self) -> None:
        with contextlib.suppress(Exception):
            self._engine.engine_core.shutdown()


class Run:
    """One workload, from its first request to its last output."""

    def __init__(
        self, channel: Channel, engine: Any, statistics: Any, message: dict[str, Any]
    ) -> None:
        self._channel = channel
        self._engine = engine
        self._statistics = statistics
        self._message = message
        self._session = Session(hooks())
        requests = message["requests"]
        self._pending = deque(sorted(requests, key=lambda r: r["arrival_step"]))
        self._aborts = {r["id"]: at for r in requests if (at := r.get("abort_step")) is not None}
        self._clock = records.Clock()
        self._names: dict[str, str] = {}
        self._emitted: dict[str, int] = {}
        self._held: list[tuple[int, Any]] | None = [] if message.get("timed") else None
        self._vocab_size = engine.vllm_config.model_config.get_vocab_size()

    def perform(self) -> None:
        """Run with recorders and faults in place, and take them out whatever happens."""
        faults = self._message["faults"]
        self._session.begin(
            write=self._tell,
            recorders=[],
            faults=faults["core"],
            model_runner=None,
        )
        broadcasts.watch(self._session, self._message)
        self._engine.collective_rpc(
            "tprig_begin",
            args=(
                self._message["run"],
                self._message["ranks"],
                self._message["recorders"],
                faults["worker"],
            ),
        )
        try:
            self._loop()
        finally:
            self._session.end()
            self._engine.collective_rpc("tprig_end")
        self._channel.send({"type": "done", "elapsed_ns": self._clock.now_ns()})

    def _tell(self, record: dict[str, Any]) -> None:
        """What a fault says; which seams have moved, the engine's description has told."""
        if record["type"] != "seam":
            self._channel.send(record)

    def _loop(self) -> None:
        step = 0
        while self._admit(step):
            self._abort(step)
            start_ns = self._clock.now_ns()
            outputs = self._engine.step()
            end_ns = self._clock.now_ns()
            for output in outputs:
                if self._held is None:
                    self._emit(step, output)
                else:
                    self._held.append((step, output))
            self._channel.send(self._statistics.take(step, start_ns, end_ns))
            step += 1
        for held in self._held or ():
            self._emit(*held)

    def _admit(self, step: int) -> bool:
        """Add the requests that are due, or the next ones when the engine has nothing left to do.

        Returns:
            True while the engine has something to do.
        """
        while self._pending and self._pending[0]["arrival_step"] <= step:
            self._add(self._pending.popleft())
        while self._pending and not self._engine.has_unfinished_requests():
            due = self._pending[0]["arrival_step"]
            while self._pending and self._pending[0]["arrival_step"] == due:
                self._add(self._pending.popleft())
        return bool(self._engine.has_unfinished_requests())

    def _abort(self, step: int) -> None:
        """Abort the requests whose time has come; one that is done is none of vLLM's any more."""
        for request in [name for name, at in self._aborts.items() if at <= step]:
            del self._aborts[request]
            self._engine.abort_request([request])

    def _add(self, request: dict[str, Any]) -> None:
        try:
            params = records.sampling_params(request["sampling"])
            prompt = {"prompt_token_ids": request["prompt_token_ids"]}
            self._engine.add_request(request["id"], prompt, params)
        except Exception as error:  # noqa: BLE001 - vLLM refuses requests by any exception
            self._channel.send(records.refusal(request["id"], error))

    def _emit(self, step: int, output: Any) -> None:
        first = self._emitted.get(output.request_id, 0)
        record = records.emission(step, first, output, self._vocab_size)
        self._emitted[output.request_id] = first + len(record["rows"])
        self._channel.send(record)
