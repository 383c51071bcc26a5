"""One engine: started with a deadline, watched while it serves, stopped in stages, proven gone."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec

from tprig import evidence, messages, stacks, tails
from tprig.bundle import BundleError, StreamWriter, Writer
from tprig.clock import utc_now
from tprig.forensics import RankWatch, Stall, receiver, save_rings
from tprig.processes import ENDS_S, Processes
from tprig.remains import Remains
from tprig.spec import EngineSpec
from tprig.template import Template, TemplateError
from tprig.wire import MalformedMessageError, PeerGoneError, WaitExpiredError, Wire

M = TypeVar("M")

PATHS_SHOWN = 20
RAISED_SHOWN = 3


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
    """Without any message while a workload runs, or any collective where those are recorded."""
    stall: Stall = dataclasses.field(default_factory=Stall)
    """More of that, where collectives are recorded."""
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
        timed: True to have the host hand over outputs when the run is done, so that what it takes
            to write them down is not in the times.
    """

    run: str
    test: str
    workload: evidence.Workload
    recorders: Sequence[str] = ("verification",)
    faults: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    timed: bool = False


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

    One thread uses an engine at a time; only `abort` may be called from another one.

    Attributes:
        id: its folder's name in the bundle.
        spec: what it was built from.
        effective: what it says it does.
        processes: those that it consists of.

    Raises:
        EngineError: `refused`, if there is no checkpoint.
        RuntimeFolderError: if there is no folder for what engines leave on the machine.
        BundleError: if the bundle cannot be written.
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
        writer.document(f"{self._folder}/spec.json", self._arm())
        self._log = writer.path(f"{self._folder}/logs/host.log")
        self.processes = Processes(engine_id, template)
        self._events = writer.stream(f"{self._folder}/events.jsonl", "engine", engine_id)
        self._wire: Wire[messages.FromHost] | None = None
        self._lost = False
        self._aborted = False
        self._trouble: BundleError | None = None
        self._ranks: RankWatch | None = None

    def _arm(self) -> evidence.Arm:
        try:
            return self.spec.arm()
        except OSError as error:
            raise EngineError(
                "refused",
                f"engine {self.id}: expected a checkpoint folder at {self.spec.model}, found "
                f"{error.strerror or error} ({error.filename}); name one with --tprig-model",
            ) from error

    @property
    def serving(self) -> bool:
        """True while it can be given runs: it has started, and nothing went wrong since."""
        return self.effective is not None and not self._lost

    # --- start -------------------------------------------------------------------------------

    def start(self) -> None:
        """Launch the engine and wait until it takes requests.

        Raises:
            EngineError: `refused` with vLLM's own words, `crashed`, `deadline`, or `lost` when
                there is no template to fork it.
        """
        self._tell("launching", f"{self.spec.python}, TP{self.spec.tensor_parallel_size}")
        with self._lost_on_error():
            self._wire = self._connect()
            if self._aborted:
                self.abort()
            message = self._expect(self._deadlines.start_s, "the engine to be ready")
            if isinstance(message, messages.Refused):
                self._fail("refused", self._said(message))
            self._checked(message, messages.Ready)
            self._tell("ready", "", pids=self.processes.pids())
            self._take(self.describe())

    def _connect(self) -> Wire[messages.FromHost]:
        try:
            host = self.processes.fork(self._request())
        except TemplateError as error:
            self._fail("lost", str(error))
        return Wire(host.channel, messages.FromHost, send_deadline_s=self._deadlines.progress_s)

    @contextlib.contextmanager
    def _lost_on_error(self) -> Iterator[None]:
        """Whatever comes in between, an interrupt too, leaves the engine of no more use."""
        try:
            yield
        except BaseException:
            self._lost = True
            raise

    def _request(self) -> dict[str, Any]:
        return {
            "engine": self.id,
            "runtime": str(self.processes.footprint.runtime),
            "shm_prefix": self.processes.footprint.shm_prefix,
            "log": str(self._log),
            "platform": self.spec.platform,
            "environment": {**self.spec.process_environment, **self._seat.environment},
            "engine_args": self.spec.engine_arguments,
            "core_process": self.spec.core_process,
            "affinity": None if self._seat.affinity is None else sorted(self._seat.affinity),
            "ranks_per_device": self.spec.ranks_per_device,
            "seams": self.spec.seams,
        }

    def describe(self) -> messages.Described:
        """Ask the engine what it does.

        Raises:
            EngineError: as `run`.
        """
        self._send({"do": "describe"})
        message = self._expect(self._deadlines.progress_s, "the engine to describe itself")
        return self._checked(message, messages.Described)

    def _take(self, message: messages.Described) -> None:
        for role, pid in message.pids.items():
            self.processes.watch(pid, role)
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

    # --- run ---------------------------------------------------------------------------------

    def run(self, order: Order, progress: Progress | None = None) -> evidence.Run:
        """Serve one workload; everything that comes back is in the bundle before this returns.

        An engine whose run did not come to its end serves no other one.

        Raises:
            EngineError: `crashed`, `lost` or `deadline`; what came before it is in the bundle.
            BundleError: if the bundle cannot be written.
        """
        started, began_s = utc_now(), time.monotonic()
        complete = False
        # Their rings are there where collectives are recorded.
        if "collectives" in order.recorders and self.effective is not None:
            place, stall = self.processes.footprint.runtime, self._deadlines.stall
            self._ranks = RankWatch(order.run, self.effective.pids, place, stall, self.spec.ras)
        try:
            with self._lost_on_error():
                self._serve(order, progress)
            complete = True
        finally:
            self._ranks = None
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
            # The error that ended the run says more than that this could not be written either.
            with contextlib.nullcontext() if complete else contextlib.suppress(BundleError):
                self._writer.document(f"runs/{order.run}/run.json", run)
        return run

    def _serve(self, order: Order, progress: Progress | None) -> None:
        folder = f"runs/{order.run}"
        self._writer.document(f"{folder}/requests.json", order.workload)
        with (
            self._writer.stream(f"{folder}/outputs.jsonl", "outputs", order.run) as outputs,
            self._writer.stream(f"{folder}/steps.jsonl", "steps", order.run) as steps,
        ):
            self._send(self._run_request(order, folder))
            self._collect(order.run, outputs, steps, progress)

    def _run_request(self, order: Order, folder: str) -> dict[str, Any]:
        ranks = self._writer.path(f"{folder}/ranks/rank0.jsonl").parent
        return {
            "do": "run",
            "run": order.run,
            "ranks": str(ranks),
            "recorders": list(order.recorders),
            "faults": {where: list(order.faults.get(where, ())) for where in ("worker", "core")},
            "requests": msgspec.to_builtins(order.workload.requests),
            "timed": order.timed,
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
            output = self._checked(message, evidence.Emission, evidence.Refusal)
            outputs.write(output)
            rows += len(output.rows) if isinstance(output, evidence.Emission) else 0

    # --- waiting -----------------------------------------------------------------------------

    def _send(self, message: dict[str, Any]) -> None:
        if self._wire is None:
            raise EngineError("lost", f"engine {self.id} was not started")
        try:
            self._wire.send(message)
        except PeerGoneError:
            self._crash()
        except WaitExpiredError as error:
            self._hang(str(error))

    def _expect(self, timeout_s: float, what: str) -> messages.FromHost:
        assert self._wire is not None
        receive = receiver(self._wire, self._ranks)
        try:
            message = receive(timeout_s, self.processes.descriptors)
        except PeerGoneError:
            self._crash()
        except WaitExpiredError as error:
            self._hang(f"waited {timeout_s:g} s for {what}" if self._ranks is None else f"{error}")
        except MalformedMessageError as error:
            self._fail("crashed", f"the host sent no message: {error}")
        if isinstance(message, int):
            self._crash()
        if isinstance(message, messages.Crashed):
            self._crash(message)
        return message

    def _checked(self, message: messages.FromHost, *expected: type[M]) -> M:
        if not isinstance(message, expected):
            names = " or ".join(kind.__name__ for kind in expected)
            self._fail("crashed", f"expected {names}, found {type(message).__name__}")
        return message

    def _crash(self, said: messages.Crashed | None = None) -> NoReturn:
        """Tell who died, and of what; save what the others were at."""
        if self._aborted:
            raise EngineError("signalled", f"engine {self.id} was aborted")
        self._trouble = save_rings(self._ranks, self._writer) or self._trouble
        words = [] if said is None else [self._said(said)]
        # A host that could still say something ends because of what it said.
        dead = self.processes.dead(ENDS_S, but="" if said is None else "host")
        if dead:
            self.save_stacks(dead)
        endings = self.processes.endings(dead)
        detail = "; ".join([*words, *endings.values()])
        self._fail("crashed", detail or "the host has closed its channel", pids=list(endings))

    def _hang(self, detail: str) -> NoReturn:
        self._lost = True
        self._trouble = save_rings(self._ranks, self._writer) or self._trouble
        self._tell("deadline", detail, pids=self.processes.pids())
        self.save_stacks()
        raise EngineError("deadline", f"engine {self.id} hangs: {detail}{self._words()}")

    def _fail(
        self, event: evidence.EventName, detail: str, *, pids: Sequence[int] = ()
    ) -> NoReturn:
        self._lost = True
        self._tell(event, detail, pids=pids)
        # vLLM's words say it all; a traceback of how it came to them does not help.
        words = f"\nsee {self._folder}/logs/host.log" if event == "refused" else self._words()
        raise EngineError(event, f"engine {self.id} {event}: {detail}{words}")

    def _said(self, message: messages.Refused | messages.Crashed) -> str:
        """What the host said, and what was raised before: vLLM keeps its workers' errors back."""
        said = f"{message.error}: {message.message}"
        before = [line for line in tails.raised(self._log) if message.message not in line]
        return "; raised before: ".join([said, *before[-RAISED_SHOWN:]])

    def _words(self) -> str:
        where = f"{self._folder}/logs/host.log"
        words = tails.tail(self._log)
        return f"\nthe end of {where}:\n{words}" if words else f"; {where} is empty"

    def save_stacks(self, dead: Iterable[int] = ()) -> None:
        """Save the Python stacks of all processes of the engine into the bundle.

        Args:
            dead: processes that may have left theirs as they crashed.
        """
        pids = [*dead, *self.processes.pids()]
        try:
            folder = self._writer.path(f"{self._folder}/stacks/stacks.txt").parent
            files = stacks.take(pids, self.processes.footprint.runtime, folder)
        except (OSError, BundleError) as error:
            self._tell("stacks", f"could not be saved: {error}", pids=pids)
            return
        paths = [f"{self._folder}/stacks/{path.name}" for path in files]
        self._tell("stacks", f"{len(paths)} processes", pids=pids, paths=paths)

    # --- stop --------------------------------------------------------------------------------

    def abort(self) -> None:
        """Kill the engine at once, from any thread; whoever waits for it hears of its end.

        It is no fault of the engine's. `stop` is still to be called.
        """
        self._lost = self._aborted = True
        self._signal(signal.SIGKILL, " to abort it")

    def stop(self, leaked: Callable[[], Sequence[str]] = tuple) -> Remains:
        """Stop the engine in stages and prove that nothing of it is left.

        Args:
            leaked: asked once the engine is gone; says which of its devices are not as they were
                before it, and how.

        Returns:
            What it had left behind by itself, which has been removed since.

        Raises:
            BundleError: if something could not be written; the engine is gone nevertheless.
        """
        try:
            self._stop_in_stages()
            self._tell("stopped", self.processes.host_ending())
            remains = self._prove_gone()
            for leak in leaked():
                self._tell("leaked", leak)
            return remains
        finally:
            self._release()

    def _release(self) -> None:
        self.processes.release()
        if self._wire is not None:
            self._wire.close()
        self._events.close()
        if self._trouble is not None:
            raise self._trouble

    def _stop_in_stages(self) -> None:
        if self._wire is not None and not self._lost and self._ask_to_stop(self._wire):
            self.processes.await_gone(self._deadlines.stop_s)
            self._tell_orphans()
        stages = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        for stage in stages[-1:] if self._lost else stages:
            self._signal(stage)
            self.processes.await_gone(self._deadlines.stop_s)

    def _signal(self, number: signal.Signals, why: str = "") -> None:
        if pids := self.processes.signal(number):
            self._tell("signalled", f"{number.name}{why}", pids=pids)

    def _tell_orphans(self) -> None:
        """A process that outlives an orderly stop was left behind by the engine."""
        if pids := self.processes.pids():
            self.save_stacks()
            self._tell("remains", f"{len(pids)} processes after an orderly stop", pids=pids)

    def _ask_to_stop(self, wire: Wire[messages.FromHost]) -> bool:
        deadline_s = time.monotonic() + self._deadlines.stop_s
        message: messages.FromHost | int | None = None
        try:
            wire.send({"do": "stop"})
            while not isinstance(message, messages.Stopped):
                message = wire.receive(max(0.0, deadline_s - time.monotonic()))
        except (PeerGoneError, WaitExpiredError, MalformedMessageError):
            return False
        return True

    def _prove_gone(self) -> Remains:
        """Remove what lies around (vLLM leaves its sockets even after a clean exit), look again."""
        footprint = self.processes.footprint
        found = footprint.remains()
        footprint.clear()
        after = footprint.remains()
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
        pids: Iterable[int] = (),
        paths: Sequence[str] = (),
    ) -> None:
        at_ns = time.monotonic_ns() - self._began_ns
        record = evidence.EngineEvent(
            event=event, at_ns=at_ns, detail=detail, pids=list(pids), paths=list(paths)
        )
        try:
            self._events.write(record)
        except BundleError as error:
            # What cannot be written must not keep the engine alive: `stop` raises it.
            self._trouble = self._trouble or error
