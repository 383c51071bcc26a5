"""Two persistent engines on the same devices, one per arm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import gpu_scheduler
from tprig.ab.arms import ArmSpec
from tprig.ab.options import Options
from tprig.bundle import Writer
from tprig.engine import Engine, Seat
from tprig.evidence import ArmName
from tprig.template import Template

PORTS = 16
"""Per engine: vLLM takes the first free one from the first on."""
RETURNED_S = 30.0
"""How long the driver may take to give stopped engines' memory back."""


class Bench:
    """Leases devices and has both engines serve on them, in turn.

    Args:
        options: the measurement's.
        writer: the bundle.
        prefix: begins the engines' ids.
        arms: by name.
        say: told what happens.

    Attributes:
        engines: by arm, while it is entered.
        lease: the devices.

    Raises (on entering):
        EngineError: an engine cannot be had.
        GpuSchedulerError: the devices cannot be had.
        TemplateError: an interpreter has no vLLM.
    """

    def __init__(
        self,
        options: Options,
        writer: Writer,
        prefix: str,
        arms: Mapping[ArmName, ArmSpec],
        say: Callable[[str], None],
    ) -> None:
        self.engines: dict[ArmName, Engine] = {}
        self._options = options
        self._writer = writer
        self._prefix = prefix
        self._arms = arms
        self._say = say
        self._ends = ExitStack()
        self._templates: dict[tuple[object, ...], Template] = {}
        self.lease: gpu_scheduler.Lease | None = None

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            self._open(ends)
            self._ends = ends.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.__exit__(kind, error, trace)

    def _open(self, ends: ExitStack) -> None:
        templates = {arm: self._template(arm, ends) for arm in self._arms}
        size = max(arm.spec.device_count for arm in self._arms.values())
        self.lease = lease = gpu_scheduler.lease(
            size,
            kind=self._options.platform,
            test=self._options.test,
            wait_s=self._options.lease_wait_s,
            on_wait=self._say_who_holds,
        )
        ends.callback(lease.release)
        ports = lease.add_ports(PORTS * len(self._arms))
        for index, (name, arm) in enumerate(self._arms.items()):
            port = {"VLLM_PORT": str(ports[PORTS * index])}
            engine = Engine(
                f"{self._prefix}-{name}-{arm.spec.key}",
                arm.spec,
                template=templates[name],
                writer=self._writer,
                deadlines=self._options.deadlines,
                seat=Seat(
                    devices=[device.id for device in lease.devices],
                    affinity=lease.affinity,
                    environment={**lease.environment, **port},
                ),
            )
            # The first to start is the last to stop: only then must devices be as they were.
            ends.callback(engine.stop, self._leaked if index == 0 else tuple)
            engine.start()
            self.engines[name] = engine

    def _template(self, arm: ArmName, ends: ExitStack) -> Template:
        """One for both arms, where they have interpreter, tree and environment in common."""
        spec = self._arms[arm].spec
        key = (spec.python, spec.overlay, tuple(sorted(spec.process_environment.items())))
        if key not in self._templates:
            self._say(f"arm {arm}: importing vLLM with {spec.python}")
            log = self._writer.path(f"logs/template-{self._prefix}-{arm}.log")
            template = Template(spec.python, spec.overlay, spec.process_environment, log)
            ends.callback(template.close)
            self._templates[key] = template
        return self._templates[key]

    def _say_who_holds(self, blocked: gpu_scheduler.Blocked) -> None:
        for refusal in blocked.refusals:
            self._say(f"waiting at position {blocked.position}: {refusal}")

    def _leaked(self) -> list[str]:
        assert self.lease is not None
        return [str(leak) for leak in self.lease.leaks(RETURNED_S)]

    @property
    def pids(self) -> list[int]:
        """The processes of both engines."""
        return [pid for engine in self.engines.values() for pid in engine.processes.pids()]
