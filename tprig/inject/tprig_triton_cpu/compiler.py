"""The compiler half of the backend: refuses to compile, because kernels are interpreted."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from triton.backends.compiler import BaseBackend, GPUTarget

REFUSAL = (
    "the `cpu` backend of tprig cannot compile Triton kernels: it stands for Triton's interpreter. "
    "Set TRITON_INTERPRET=1 before triton is imported"
)


class InterpreterBackend(BaseBackend):  # type: ignore[misc]
    """Satisfies Triton's interface for a backend; every way to compile raises."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        """True for the target named `cpu` alone."""
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        """Identifies the backend."""
        return "tprig-interpreter"

    def parse_options(self, options: dict[str, Any]) -> object:  # noqa: ARG002
        """Compiling is refused.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(REFUSAL)

    def add_stages(self, stages: dict[str, Any], options: object, language: object) -> None:  # noqa: ARG002
        """Compiling is refused.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(REFUSAL)

    def load_dialects(self, context: object) -> None:
        """There are none."""

    def get_module_map(self) -> dict[str, ModuleType]:
        """There is none."""
        return {}
