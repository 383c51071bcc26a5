"""What can go wrong with a lease."""

from __future__ import annotations

from gpu_scheduler.placement import Refusal


class GpuSchedulerError(Exception):
    """Base of this package's errors.

    All four parts are kept in `args`, so that an error crosses process borders unchanged.
    """

    def __init__(self, expected: str, found: str, rule: str, remedy: str) -> None:
        super().__init__(expected, found, rule, remedy)
        self.expected = expected
        self.found = found
        self.rule = rule
        self.remedy = remedy

    def __str__(self) -> str:
        return (
            f"expected: {self.expected}\n"
            f"found:    {self.found}\n"
            f"rule:     {self.rule}\n"
            f"remedy:   {self.remedy}"
        )


class LockFolderError(GpuSchedulerError):
    """The folder of lock files cannot give exclusive locks to everyone on this host."""


class VisibilityError(GpuSchedulerError):
    """CUDA_VISIBLE_DEVICES names devices in an order that NVML cannot know."""


class QuarantineError(GpuSchedulerError):
    """A quarantine cannot be put in force or ended."""


class CacheFolderError(GpuSchedulerError):
    """A folder for what engines cache cannot be made."""


class Unsatisfiable(GpuSchedulerError):  # noqa: N818 (an outcome, as filelock.Timeout is)
    """This host can never grant the request, however long one waits."""


class LeaseTimeout(GpuSchedulerError):  # noqa: N818 (an outcome, as filelock.Timeout is)
    """The deadline passed before enough devices were usable at the same time.

    Attributes:
        refusals: Per device that was not handed out, who or what stood in the way.
    """

    def __init__(
        self, expected: str, found: str, rule: str, remedy: str, refusals: tuple[Refusal, ...] = ()
    ) -> None:
        super().__init__(expected, found, rule, remedy)
        self.args = (expected, found, rule, remedy, refusals)
        self.refusals = refusals

    def __str__(self) -> str:
        lines = [super().__str__(), *(f"  {refusal}" for refusal in self.refusals)]
        return "\n".join(lines)
