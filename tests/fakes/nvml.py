"""A host of GPUs that are not there: the real nvidia-ml-py on a C library that a file drives.

`nvidia_ml.c` beside this file says what the library keeps of NVML's contract. It is built with the
C compiler when a test first needs it. In this process, assign a `FakeNvml` to
`gpu_scheduler.nvml.pynvml`; in another one, give it `FakeNvml.environment`, and pynvml loads the
library as it would load the driver's.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pynvml

GIB = 1024**3
_LIBRARY = "libnvidia-ml.so.1"
_BUILT = "FAKE_NVML_LIBRARY"
"""Tells children where the library lies that this process has built."""
_TOPOLOGY = "FAKE_NVML_TOPOLOGY"


@dataclass(kw_only=True)
class FakeMig:
    """One MIG instance."""

    uuid: str
    name: str = "NVIDIA H200 MIG 1g.18gb"
    total_bytes: int = 16 * GIB
    reserved_bytes: int = 0
    used_bytes: int = 0
    processes: list[tuple[int, int | None]] = field(default_factory=list)


@dataclass(kw_only=True)
class FakeGpu:
    """One GPU; change it between two inventories to play a host where things happen."""

    uuid: str
    bus: int = 0x17
    name: str = "NVIDIA H200"
    total_bytes: int = 140 * GIB
    reserved_bytes: int = GIB // 2
    used_bytes: int = 0
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    mig: bool | None = False
    instances: list[FakeMig] = field(default_factory=list)
    error: int | None = None
    """What every call on this GPU fails with, such as NVML_ERROR_GPU_IS_LOST."""


@dataclass(kw_only=True)
class FakeNvml:
    """A host. What is changed here shows from the next session in this process on."""

    gpus: Sequence[FakeGpu] = ()
    nvlinks: Sequence[tuple[int, int]] = ()
    """Pairs of places in `gpus` that reach each other over NVLink."""
    apart: Sequence[tuple[int, int]] = ()
    """Pairs that cannot reach each other's memory."""
    init_error: int | None = None
    missing: frozenset[str] = frozenset()
    """Functions that this driver's library lacks."""
    on_init: Callable[[int], None] = lambda _count: None
    """Called with the number of sessions so far, at the start of each."""
    sessions: int = 0
    is_open: bool = False
    _path: Path | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (pynvml is untyped)
        """Everything but sessions is the real module's."""
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:  # noqa: N802
        assert not self.is_open, "a session was left open"
        self.sessions += 1
        self.on_init(self.sessions)
        os.environ[_TOPOLOGY] = str(self.write())
        # A process that has loaded a driver's own library keeps it; this one is put in its place.
        pynvml.nvmlLib = _loaded()
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlInit()
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        pynvml.nvmlShutdown()
        self.is_open = False

    def write(self) -> Path:
        """Writes the topology file anew, in one step; returns where."""
        if self._path is None:
            self._path = _folder() / f"topology-{os.getpid()}-{id(self)}"
        text = "".join(f"{line}\n" for line in self._lines())
        if not self._path.exists() or self._path.read_text() != text:
            draft = self._path.with_suffix(".new")
            draft.write_text(text)
            draft.rename(self._path)
        return self._path

    @property
    def environment(self) -> dict[str, str]:
        """What another process needs to find these GPUs with its own pynvml."""
        return {_TOPOLOGY: str(self.write()), "LD_LIBRARY_PATH": str(library().parent)}

    def _lines(self) -> list[str]:
        lines = [f"init {self.init_error or 0}", "driver 570.86.15 12080"]
        lines += [f"missing {name}" for name in sorted(self.missing)]
        for gpu in self.gpus:
            mig = -1 if gpu.mig is None else int(gpu.mig)
            sizes = f"{gpu.total_bytes} {gpu.reserved_bytes} {gpu.used_bytes}"
            lines.append(f"gpu {gpu.uuid} {gpu.bus:x} {sizes} {mig} {gpu.error or 0} {gpu.name}")
            lines += _processes(gpu)
            for each in gpu.instances:
                sizes = f"{each.total_bytes} {each.reserved_bytes} {each.used_bytes}"
                lines.append(f"mig {each.uuid} {sizes} {each.name}")
                lines += _processes(each)
        lines += [f"nvlink {one} {other}" for one, other in self.nvlinks]
        return lines + [f"nop2p {one} {other}" for one, other in self.apart]


def _processes(device: FakeGpu | FakeMig) -> list[str]:
    return [f"process {pid} {-1 if used is None else used}" for pid, used in device.processes]


def host_of(count: int) -> FakeNvml:
    """A healthy host of equal GPUs, `GPU-0...`, `GPU-1...`, in PCI order."""
    return FakeNvml(
        gpus=[FakeGpu(uuid=f"GPU-{n:x}000-aaaa", bus=0x10 + n) for n in range(count)],
    )


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="fake-nvml-")
    owner = os.getpid()

    # A forked child must not take it away under its parent.
    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Path(folder)


@cache
def library() -> Path:
    """Builds the library, once for this process and those that it starts."""
    built = os.environ.get(_BUILT)
    if built is None:
        built = str(_folder() / _LIBRARY)
        source = Path(__file__).with_name("nvidia_ml.c")
        flags = [
            "-O1",
            "-shared",
            "-fPIC",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-Wl,-soname,{_LIBRARY}",
        ]
        subprocess.run(["cc", *flags, "-o", built, str(source)], check=True)
        os.environ[_BUILT] = built
    return Path(built)


@cache
def _loaded() -> ctypes.CDLL:
    return ctypes.CDLL(str(library()))
