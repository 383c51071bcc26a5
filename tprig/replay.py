"""Runs captured calls again, in a child process under the interpreter of the vLLM under test.

A record is not trusted: it is validated before the child hears of it (`tprig.checkers.oracle`
says what must hold), and the child has a deadline for every repetition, since vLLM's kernels
follow whatever indices they are given.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tprig import evidence, foreign, messages, tails
from tprig.bundle import BundleError, Writer
from tprig.bundle.oracle import CALLS, REPLAYS
from tprig.checkers.oracle.bounds import CallBoundsError, arms, require_bounds
from tprig.clock import utc_now
from tprig.history import CallHistory
from tprig.spec import EngineSpec
from tprig.template import module_path
from tprig.wire import MalformedMessageError, PeerGoneError, WaitExpiredError, Wire

WARM_DEADLINE_S = 300.0
REPETITION_BASE_S = 120.0
ELEMENT_S = 20e-6
"""Per logit; an interpreted kernel takes about a fifth of it."""
END_S = 2.0

Progress = Callable[[str], None]


class ReplayError(Exception):
    """No replay can be had: there is no such interpreter, no vLLM in it, or no call to replay."""


@dataclass(frozen=True, kw_only=True)
class Replays:
    """How calls are replayed.

    Attributes:
        python: interpreter of the vLLM under test.
        overlay: a folder with a `vllm` package to be taken before the installed one.
        device: what it runs on.
        repetitions: of each arm.
        faults: bugs to plant in the samplers (`tprig_inject.oracle.faults`).
        repetition_deadline_s: longest wait for one repetition; None makes it depend on the size.
        environment: variables that show the process its devices.
    """

    python: str
    overlay: Path | None = None
    device: evidence.Device = "cpu"
    repetitions: int = 5
    faults: Sequence[str] = ()
    repetition_deadline_s: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


class Replayer:
    """The child process.

    Args:
        replays: how.
        log: where its output goes.

    Attributes:
        warm: what it said once vLLM was imported.

    Raises:
        ReplayError: if there is no such interpreter, or it cannot import vLLM.
    """

    def __init__(self, replays: Replays, log: Path) -> None:
        self._replays = replays
        self._log = log
        self._process, self._wire = self._spawn()
        try:
            self.warm = self._await_warm()
        except BaseException:
            self.close()
            raise

    def _spawn(self) -> tuple[subprocess.Popen[bytes], Wire[messages.FromReplayer]]:
        replays = self._replays
        environment = {
            **EngineSpec(model=Path("/"), platform=replays.device).process_environment,
            **replays.environment,
        }
        command = [replays.python, "-m", "tprig_inject.replay", "--platform", replays.device]
        try:
            process, ours = foreign.spawn(
                command,
                {**os.environ, **environment, **module_path(replays.overlay)},
                self._log,
            )
        except OSError as error:
            raise ReplayError(
                f"expected a Python with vLLM at {replays.python}, found that it cannot be "
                f"started: {error}; name one with --vllm-python"
            ) from error
        return process, Wire(ours, messages.FromReplayer)

    def _await_warm(self) -> messages.Replayer:
        expected = f"expected a Python with vLLM at {self._replays.python}"
        try:
            message = self._wire.receive(WARM_DEADLINE_S)
        except (PeerGoneError, WaitExpiredError, MalformedMessageError) as error:
            raise ReplayError(f"{expected}, found none: {error}{self._words()}") from error
        if isinstance(message, messages.Replayer):
            return message
        said = f"{message.error}: {message.message}" if isinstance(message, messages.Failed) else ""
        raise ReplayError(
            f"{expected}, found that vLLM cannot be imported: {said}; name one with --vllm-python"
        )

    def run(
        self, call: str, folder: Path, arm: evidence.ReplayArm, keep: Path, deadline_s: float
    ) -> Iterator[evidence.ReplayRecord]:
        """Replay one arm of one call that has been validated.

        Args:
            call: its id.
            folder: where `call.json` and the tensors lie.
            arm: replay off or on.
            keep: folder for outputs that production did not return.
            deadline_s: for each repetition.

        Yields:
            A record per repetition; last a failure, if it could not be brought to its end. After
            a failure of the process itself `alive` is False.
        """
        request = {
            "call": call,
            "folder": str(folder.absolute()),
            "arm": arm,
            "repetitions": self._replays.repetitions,
            "keep": str(keep.absolute()),
            "faults": list(self._replays.faults),
        }
        try:
            self._wire.send(request)
            while (record := self._receive(deadline_s)) is not None:
                yield record
        except WaitExpiredError:
            text = f"no repetition ended within {deadline_s:g} s"
            yield evidence.ReplayFailure(call=call, arm=arm, error="deadline", message=text)
            self.close()
        except (PeerGoneError, MalformedMessageError) as error:
            text = f"{self._ending() or error}{self._words()}"
            yield evidence.ReplayFailure(call=call, arm=arm, error="crashed", message=text)
            self.close()

    def _receive(self, deadline_s: float) -> evidence.ReplayRecord | None:
        """The next result; None when the arm is done."""
        message = self._wire.receive(deadline_s)
        if isinstance(message, messages.ArmDone):
            return None
        if isinstance(message, (evidence.Replayed, evidence.ReplayFailure)):
            return message
        raise MalformedMessageError(f"expected a result, found {message!r}")

    @property
    def alive(self) -> bool:
        """True while it can be given calls."""
        return self._process.poll() is None

    def _ending(self) -> str | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"the process {tails.ending(self._process.wait(END_S))}"
        return None

    def _words(self) -> str:
        words = tails.tail(self._log)
        return f"\nthe end of {self._log}:\n{words}" if words else ""

    def close(self) -> None:
        """End the process, and all that it started."""
        self._wire.close()
        if self.alive:
            foreign.kill(self._process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def validated(calls: Mapping[str, CallHistory]) -> dict[str, list[evidence.ReplayArm]]:
    """The arms in which each call can be replayed.

    Raises:
        ReplayError: if there is no call, or one holds an index or a bound that is out of range:
            then none is run.
    """
    if not calls:
        raise ReplayError("expected captured calls, found none: was the run made with them?")
    planned = {}
    for name, history in calls.items():
        try:
            tensors = history.tensors()
            require_bounds(history.call, tensors)
        except (CallBoundsError, BundleError, OSError) as error:
            raise ReplayError(f"call {name} is refused: {error}") from error
        planned[name] = arms(tensors)
    return planned


def replay(
    calls: Mapping[str, CallHistory],
    root: Path,
    writer: Writer,
    replays: Replays,
    name: str,
    progress: Progress,
    *,
    each: Progress = lambda _text: None,
) -> evidence.Replay:
    """Replay calls of a bundle, and write what comes back as `replays/<name>/`.

    Args:
        calls: id -> captured call.
        root: the bundle that holds them.
        writer: where results go; another bundle, or the same.
        replays: how.
        name: the replay's id.
        progress: told of each arm of each call.
        each: told of each repetition.

    Raises:
        ReplayError: if a call cannot be trusted, or no vLLM can be had.
        BundleError: if the results cannot be written.
    """
    planned = validated(calls)
    folder = f"{REPLAYS}/{name}"
    log = writer.path(f"{folder}/replay.log")
    started = utc_now()
    with Replayer(replays, log) as first:
        document = _document(name, started, replays, first.warm, planned)
        writer.document(f"{folder}/replay.json", document)
        keep = writer.path(f"{folder}/outputs/x").parent
        replayer = first
        try:
            with writer.stream(f"{folder}/results.jsonl", "replay", name, flush=True) as results:
                for call, arm in _turns(document):
                    if not replayer.alive:
                        replayer = Replayer(replays, log)
                    progress(f"call {call[:8]}, replay {arm}, {replays.repetitions} times")
                    deadline_s = replays.repetition_deadline_s or _deadline_s(calls[call])
                    source = root / CALLS / call
                    for record in replayer.run(call, source, arm, keep, deadline_s):
                        results.write(record)
                        each(_told(record))
        finally:
            replayer.close()
            # An empty folder is not part of a bundle.
            with contextlib.suppress(OSError):
                keep.rmdir()
    return document


def _document(
    name: str,
    started: str,
    replays: Replays,
    warm: messages.Replayer,
    planned: Mapping[str, list[evidence.ReplayArm]],
) -> evidence.Replay:
    return evidence.Replay(
        version=evidence.SCHEMA_VERSION,
        id=name,
        started=started,
        python=replays.python,
        device=replays.device,
        device_name=warm.device_name,
        vllm_version=warm.vllm_version,
        vllm_path=warm.vllm_path,
        versions=warm.versions,
        repetitions=replays.repetitions,
        seams=warm.seams,
        replays_masks=warm.replays_masks,
        top_k_ties=warm.top_k_ties,
        planned=[
            evidence.PlannedCall(
                call=call, arms=[arm for arm in arms if arm == "off" or warm.replays_masks]
            )
            for call, arms in planned.items()
        ],
        faults=list(replays.faults),
    )


def _turns(document: evidence.Replay) -> Iterator[tuple[str, evidence.ReplayArm]]:
    for planned in document.planned:
        for arm in planned.arms:
            yield planned.call, arm


def _deadline_s(history: CallHistory) -> float:
    logits = next(t for t in history.call.tensors if t.name == "logits")
    rows, vocab_size = logits.shape
    return REPETITION_BASE_S + rows * vocab_size * ELEMENT_S


def _told(record: evidence.ReplayRecord) -> str:
    if isinstance(record, evidence.ReplayFailure):
        return f"call {record.call[:8]}, replay {record.arm}: {record.error}: {record.message}"
    elapsed_s = record.elapsed_ns / 1e9
    return (
        f"call {record.call[:8]}, replay {record.arm}: repetition {record.repetition + 1} took "
        f"{elapsed_s:.2f} s"
    )
