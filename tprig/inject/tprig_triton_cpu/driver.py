"""The driver half of the backend: names the CPU as the device, launches nothing."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class InterpreterDriver(DriverBase):  # type: ignore[misc]
    """Satisfies Triton's interface for a driver."""

    @classmethod
    def is_active(cls) -> bool:
        """False, so that Triton never prefers it to a GPU's driver."""
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Used by launchers alone, which the interpreter has not."""
        return ty

    def get_current_target(self) -> GPUTarget:
        """A target that only this backend supports."""
        return GPUTarget("cpu", 0, 0)

    def get_active_torch_device(self) -> Any:
        """The CPU."""
        import torch

        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        """Interpreted kernels are not tuned.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("interpreted kernels cannot be benchmarked")
