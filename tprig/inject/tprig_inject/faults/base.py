"""What a planted fault is, and what it stands on while a run lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tprig_inject.context import Context
from tprig_inject.hooks import Layer, Wrap

Suite = Literal["faults", "performance", "determinism"]
REPLAY = ("masks", "outputs", "acceptance")
"""The checkers that hold a run with replay on against one with replay off."""
CAPTURED = (*REPLAY, "oracle")
"""Those, and the reference that judges captured calls of the rejection sampler."""
LOST = ("rank_order", "engine")
"""What judges a run that did not come to its end."""
PARITY = ("parity",)
"""TP2 against TP1: for what is wrong on every rank, with replay off and on alike."""
ENGINE = ("engine",)


class Once:
    """Lets a fault strike one time per run, and tells the stream.

    Attributes:
        context: the run's.
        spent: True when it has struck.
    """

    def __init__(self, context: Context, name: str) -> None:
        self.context = context
        self._name = name
        self._armed = False
        self.spent = False

    def wrap(self, seam: str, wrap: Wrap) -> None:
        """Put the fault in place, and note that it is.

        Raises:
            SeamMovedError: if the seam does not look as expected.
        """
        self.context.wrap(seam, Layer.FAULT, wrap)
        self.arm()

    def arm(self) -> None:
        """Note that the fault is in place; a fault at several seams is so once."""
        if not self._armed:
            self._armed = True
            self._tell("armed", "")

    def strike(self, detail: str) -> None:
        """Note that the fault has altered something."""
        self.spent = True
        self._tell("struck", detail)

    def _tell(self, event: str, detail: str) -> None:
        step = self.context.step
        self.context.write(
            {
                "type": "fault",
                "name": self._name,
                "event": event,
                "step": step if step >= 0 else None,
                "detail": detail,
            }
        )


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One planted bug.

    Attributes:
        plant: puts it in place for the length of a run.
        resembles: the class of real bug that it stands for.
        anomaly: the anomaly that must name it, and be the first to blame.
        process: where it is planted: in every worker, or where the scheduler runs.
        judges: the checkers that are asked, all of them; at TP2 the one of rank order as well.
        draft: vLLM's `draft_sample_method` that it needs.
        workload: the profile of requests that it needs.
        sizes: tensor-parallel sizes at which it can be planted.
        lethal: True when the engine is lost to it: it is tried on an engine of its own.
        cuda_only: True when it needs streams, graphs or NCCL.
        suite: which of the suites judges it: the one of faults asks checkers of `judges`; what
            alters nothing but how long things take shows in a measurement of `performance`, and
            what tells equal runs apart in `determinism`.
    """

    plant: Callable[[Once], None]
    resembles: str
    anomaly: str
    process: Literal["worker", "core"] = "worker"
    judges: tuple[str, ...] = REPLAY
    draft: Literal["greedy", "probabilistic"] = "greedy"
    workload: str = "faults"
    sizes: tuple[int, ...] = (1, 2)
    lethal: bool = False
    cuda_only: bool = False
    suite: Suite = "faults"
