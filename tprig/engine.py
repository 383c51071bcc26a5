"""One engine: started with a deadline, watched while it serves, stopped in stages, proven gone."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from tprig import evidence, messages, stacks, tails
from tprig.bundle import StreamWriter, Writer
from tprig.clock import utc_now
from tprig.remains import Footprint, Remains
from tprig.spec import EngineSpec
from tprig.template import Child, Template
from tprig.wire import PeerGoneError, WaitExpiredError, Wire

PATHS_SHOWN = 20
EXIT_CODE_WAIT_S = 1.0


class EngineError(Exception):
    """An engine could not be had, or was lost; `event` is what the evidence calls it."""

    def __init__(self, event: evidence.EventName, message: str) -> None:
        super().__init__(message)
        self.event = event


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deadlines:
    """How long is waited, in seconds."""

    start_s: float = 300.0
    """Until the engine is ready: a cold CUDA start with graphs takes up to two minutes."""
    progress_s: float = 120.0
    """Without any message while a workload runs."""
    stop_s: float = 20.0
    """For an orderly stop, and again after SIGINT and after SIGTERM."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """One run to be made on an engine.

    Attributes:
        run: the run's id in the bundle.
        test: who asked for it.
        workload: the requests.
        recorders: names of `tprig_inject.recorders.RECORDERS`.
        faults: faults to plant, by the process they belong to (`worker`, `core`).
    """

    run: str
    test: str
    workload: evidence.Workload
    recorders: Sequence[str] = ("verification",)
    faults: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seat:
    """Where an engine runs: what its lease gave it.

    Attributes:
        devices: ids, for the record.
        affinity: cores; None leaves them as they are.
        environment: variables that show the engine these devices.
    """

    devices: Sequence[str] = ()
    affinity: frozenset[int] | None = None
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


Progress = Callable[[str, int, float], None]
"""Called with a run's id, the rows so far and the elapsed seconds."""


class Engine:
    """A running engine. Use `start`; call `stop` once, whatever happened.

    Attributes:
        id: its folder's name in the bundle.
        spec: what it was built from.
        effective: what it says it does.
    """

    def __init__(
        self,
        engine_id: str,
        spec: EngineSpec,
        *,
        template: Template,
        writer: Writer,
        deadlines: Deadlines | None = None,
        seat: Seat | None = None,
    ) -> None:
        self.id = engine_id
        self.spec = spec
        self.effective: evidence.Effective | None = None
        self._template = template
        self._writer = writer
        self._deadlines = deadlines or Deadlines()
        self._seat = seat or Seat()
        self._began_ns = time.monotonic_ns()
        self._folder = f"engines/{engine_id}"
        writer.document(f"{self._folder}/spec.json", spec.arm())
        self._events = writer.stream(f"{self._folder}/events.jsonl", "engine", engine_id)
        self._log = writer.path(f"{self._folder}/logs/host.log")
        self._footprint = Footprint(engine_id)
        self._child: Child | None = None
        self._wire: Wire[messages.FromHost] | None = None
        self._pidfds: dict[int, str] = {}
        self._lost = False

    # --- start -------------------------------------------------------------------------------

    def start(self) -> None:
        """Launch the engine and wait until it takes requests.

        Raises:
            EngineError: `refused` with vLLM's own words, `crashed`, or `deadline`.
            TemplateError: if the interpreter under test cannot be had.
        """
        self._tell("launching", f"{self.spec.python}, TP{self.spec.tensor_parallel_size}")
        self._child = self._template.fork(self._request())
        self._footprint.own(self._child.pid)
        self._wire = Wire(self._child.channel, messages.FromHost)
        self._watch(self._child.pid, "host")
        message = self._expect(self._deadlines.start_s, "the engine to be ready")
        if isinstance(message, messages.Refused):
            self._fail("refused", f"{message.error}: {message.message}")
        assert isinstance(message, messages.Ready)
        self._tell("ready", "", pids=self._footprint.pids())
        self._describe()

    def _request(self) -> dict[str, Any]:
        return {
            "engine": self.id,
            "runtime": str(self._footprint.runtime),
            "shm_prefix": self._footprint.shm_prefix,
            "log": str(self._log),
            "platform": self.spec.platform,
            "environment": {**self.spec.process_environment, **self._seat.environment},
            "engine_args": self.spec.engine_arguments,
            "core_process": self.spec.core_process,
            "affinity": None if self._seat.affinity is None else sorted(self._seat.affinity),
            "seams": self.spec.seams,
        }

    def _describe(self) -> None:
        assert self._wire is not None
        self._send({"do": "describe"})
        message = self._expect(self._deadlines.progress_s, "the engine to describe itself")
        assert isinstance(message, messages.Described)
        for role, pid in message.pids.items():
            self._watch(pid, role)
        self.effective = evidence.Effective(
            vllm_version=message.vllm_version,
            vllm_digest=message.vllm_digest,
            vllm_path=message.vllm_path,
            versions=message.versions,
            config=message.config,
            pids=message.pids,
            devices=list(self._seat.devices),
            seams=message.seams,
            vocab_size=message.vocab_size,
        )
        self._writer.document(f"{self._folder}/effective.json", self.effective)

    def _watch(self, pid: int, role: str) -> None:
        """Hear at once when a process of the engine ends: waiting for silence takes minutes."""
        if role not in self._pidfds.values():
            with contextlib.suppress(ProcessLookupError):
                self._pidfds[os.pidfd_open(pid)] = role

    # --- run ---------------------------------------------------------------------------------

    def run(self, order: Order, progress: Progress | None = None) -> evidence.Run:
        """Serve one workload; everything that comes back is in the bundle before this returns.

        Raises:
            EngineError: `crashed`, `lost` or `deadline`; what came before it is in the bundle.
        """
        folder = f"runs/{order.run}"
        started, began_s = utc_now(), time.monotonic()
        self._writer.document(f"{folder}/requests.json", order.workload)
        outputs = self._writer.stream(f"{folder}/outputs.jsonl", "outputs", order.run)
        steps = self._writer.stream(f"{folder}/steps.jsonl", "steps", order.run)
        complete = False
        try:
            with outputs, steps:
                self._send(self._run_request(order, folder))
                self._collect(order.run, outputs, steps, progress)
            complete = True
        finally:
            run = evidence.Run(
                id=order.run,
                engine=self.id,
                test=order.test,
                recorders=list(order.recorders),
                faults=[name for names in order.faults.values() for name in names],
                started=started,
                elapsed_s=time.monotonic() - began_s,
                complete=complete,
                rank_streams=self.spec.tensor_parallel_size,
            )
            self._writer.document(f"{folder}/run.json", run)
        return run

    def _run_request(self, order: Order, folder: str) -> dict[str, Any]:
        ranks = self._writer.path(f"{folder}/ranks/rank0.jsonl").parent
        return {
            "do": "run",
            "run": order.run,
            "ranks": str(ranks),
            "recorders": list(order.recorders),
            "faults": {where: list(order.faults.get(where, ())) for where in ("worker", "core")},
            "requests": msgspec.to_builtins(order.workload.requests),
        }

    def _collect(
        self, run: str, outputs: StreamWriter, steps: StreamWriter, progress: Progress | None
    ) -> None:
        rows, began_s = 0, time.monotonic()
        while True:
            message = self._expect(self._deadlines.progress_s, f"the next output of run {run}")
            if isinstance(message, messages.Done):
                return
            if isinstance(message, (evidence.Step, evidence.Fault)):
                steps.write(message)
                if progress is not None:
                    progress(run, rows, time.monotonic() - began_s)
                continue
            assert isinstance(message, (evidence.Emission, evidence.Refusal))
            outputs.write(message)
            rows += len(message.rows) if isinstance(message, evidence.Emission) else 0

    # --- waiting -----------------------------------------------------------------------------

    def _send(self, message: dict[str, Any]) -> None:
        assert self._wire is not None
        try:
            self._wire.send(message)
        except PeerGoneError:
            self._gone("host")

    def _expect(self, timeout_s: float, what: str) -> messages.FromHost:
        assert self._wire is not None
        try:
            message = self._wire.receive(timeout_s, list(self._pidfds))
        except PeerGoneError:
            self._gone("host")
        except WaitExpiredError:
            self._hang(f"waited {timeout_s:g} s for {what}")
        if isinstance(message, int):
            self._gone(self._pidfds[message])
        if isinstance(message, messages.Crashed):
            self._fail("crashed", f"{message.error}: {message.message}")
        return message

    def _gone(self, role: str) -> NoReturn:
        assert self._child is not None
        code = self._template.exit_code(self._child.pid, 2.0) if role == "host" else None
        self._fail("crashed", f"process {role} ended{_ending(code)}")

    def _hang(self, detail: str) -> NoReturn:
        pids = self._footprint.pids()
        self._tell("deadline", detail, pids=pids)
        self.save_stacks()
        self._lost = True
        raise EngineError("deadline", f"engine {self.id} hangs: {detail}{self._words()}")

    def _fail(self, event: evidence.EventName, detail: str) -> NoReturn:
        self._lost = True
        self._tell(event, detail)
        words = "" if event == "refused" else self._words()
        raise EngineError(event, f"engine {self.id} {event}: {detail}{words}")

    def _words(self) -> str:
        return f"\nthe end of {self._folder}/logs/host.log:\n{tails.tail(self._log)}"

    def save_stacks(self) -> None:
        """Save the Python stacks of all processes of the engine into the bundle."""
        folder = self._writer.path(f"{self._folder}/stacks/stacks.txt").parent
        pids = self._footprint.pids()
        files = stacks.take(pids, self._footprint.runtime, folder)
        paths = [f"{self._folder}/stacks/{path.name}" for path in files]
        self._tell("stacks", f"{len(paths)} processes", pids=pids, paths=paths)

    # --- stop --------------------------------------------------------------------------------

    def abort(self) -> None:
        """Kill the engine at once, from any thread; whoever waits for it hears of its end.

        `stop` is still to be called.
        """
        self._lost = True
        for pid in self._footprint.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> Remains:
        """Stop the engine in stages and prove that nothing of it is left.

        Returns:
            What it had left behind by itself, which has been removed since.
        """
        try:
            if self._child is not None:
                self._stop_in_stages(self._child.pid)
            return self._prove_gone()
        finally:
            for descriptor in self._pidfds:
                os.close(descriptor)
            self._pidfds.clear()
            if self._wire is not None:
                self._wire.close()
            self._events.close()

    def _stop_in_stages(self, host_pid: int) -> None:
        if not self._lost and self._ask_to_stop():
            self._await_gone()
            self._tell_orphans()
        stages = (
            (signal.SIGKILL,) if self._lost else (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        )
        for stage in stages:
            if self._footprint.pids():
                self._signal(stage)
                self._await_gone()
        code = self._template.exit_code(host_pid, EXIT_CODE_WAIT_S)
        self._tell("stopped", f"host{_ending(code)}")

    def _tell_orphans(self) -> None:
        """A process that outlives an orderly stop was left behind by the engine."""
        if pids := self._footprint.pids():
            self.save_stacks()
            self._tell("remains", f"{len(pids)} processes after an orderly stop", pids=pids)

    def _ask_to_stop(self) -> bool:
        assert self._wire is not None
        try:
            self._wire.send({"do": "stop"})
            while not isinstance(self._wire.receive(self._deadlines.stop_s), messages.Stopped):
                continue
        except (PeerGoneError, WaitExpiredError):
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        pids = self._footprint.pids()
        self._tell("signalled", number.name, pids=pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _await_gone(self) -> None:
        deadline_s = time.monotonic() + self._deadlines.stop_s
        while self._footprint.pids() and time.monotonic() < deadline_s:
            time.sleep(0.02)

    def _prove_gone(self) -> Remains:
        """Remove what lies around (vLLM leaves its sockets even after a clean exit), look again."""
        found = self._footprint.remains()
        self._footprint.clear()
        after = self._footprint.remains()
        paths = [str(path) for path in (after or found).paths]
        if after:
            self._tell("remains", "could not be removed", pids=after.pids, paths=paths)
        else:
            self._tell("cleaned", f"{len(paths)} files removed", paths=paths[:PATHS_SHOWN])
        return found

    def _tell(
        self,
        event: evidence.EventName,
        detail: str,
        *,
        pids: Sequence[int] = (),
        paths: Sequence[str] = (),
    ) -> None:
        at_ns = time.monotonic_ns() - self._began_ns
        self._events.write(
            evidence.EngineEvent(
                event=event, at_ns=at_ns, detail=detail, pids=list(pids), paths=list(paths)
            )
        )


def _ending(code: int | None) -> str:
    if code is None:
        return ""
    if code < 0:
        return f" by {signal.Signals(-code).name}"
    return f" with exit code {code}"
