"""Says what ran where: host, GPUs, interpreter, work trees and variables, secrets redacted."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from tprig import evidence
from tprig.bundle.files import printable
from tprig.command import CommandError, run

REDACTED = "<redacted>"
PROBE_DEADLINE_S = 60.0
GIT_DEADLINE_S = 30.0

_CHECKOUT = Path(__file__).resolve().parents[1]
_CPU_INFO = Path("/proc/cpuinfo")

_PREFIXES = (
    *("VLLM_", "TPRIG_", "TORCH", "PYTORCH", "TRITON_", "CUDA_", "CUBLAS", "CUDNN", "NVIDIA_"),
    *("NCCL_", "GLOO_", "UCX_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_"),
    *("FLASHINFER_", "FLASH_ATTN", "DG_", "HF_", "HUGGING_FACE_", "TRANSFORMERS_", "TOKENIZERS_"),
    *("PYTHON", "LD_"),
)
# Buildkite's by name, for its others carry messages and people's addresses.
_NAMES = frozenset(
    {
        *(
            "BUILDKITE_BRANCH",
            "BUILDKITE_BUILD_ID",
            "BUILDKITE_BUILD_NUMBER",
            "BUILDKITE_BUILD_URL",
        ),
        *("BUILDKITE_COMMIT", "BUILDKITE_JOB_ID", "BUILDKITE_PARALLEL_JOB", "BUILDKITE_STEP_KEY"),
        *("BUILDKITE_PIPELINE_SLUG", "BUILDKITE_PULL_REQUEST", "BUILDKITE_RETRY_COUNT"),
        *("CC", "CI", "CXX", "GLIBC_TUNABLES", "TMPDIR", "VIRTUAL_ENV"),
    }
)

_TELLTALE = (
    "(?:TOKEN|KEY|SECRET|PASSW|PASSPHRASE|PWD|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE|BEARER|DSN)"
)
_SECRET_NAME = re.compile(_TELLTALE, re.IGNORECASE)
# Names that hold such a word in another sense.
_HARMLESS_NAME = re.compile(
    "TOKENIZERS?|(MAX|NUM|BATCHED|TOTAL)_TOKENS|FASTOKENS|TOKEN_THRESHOLD|BUILDKITE_STEP_KEY"
    r"|^(?:OLD)?PWD$",
    re.IGNORECASE,
)
# Shorter values ("1", "true") would be struck out wherever they stand.
_MIN_SECRET_CHARACTERS = 6
# A password may hold a bare slash; what follows a port is a path, and may hold an `@revision`.
_USER_INFO = re.compile(r"(://)(?:[^/?#\s]*|[^/?#\s:@]*:(?!\d+/)[^\s@]*)(@)")
_BEARER = re.compile(r"\b((?:bearer|basic)\s+)[\w.~+/=-]{6,}()", re.IGNORECASE)
_KNOWN_TOKEN = re.compile(
    r"\b()(?:hf_|gh[pousr]_|github_pat_|glpat-|bk[a-z]{2}_|sk-|xox[abps]-|AKIA)[\w-]{10,}()"
)
# A setting within a value: `token=x`, `"api_key": "x"`, `--api-key x`, `?access_token=x`.
# The name is matched possessively: with backtracking, a long one takes quadratic time.
_SETTING = re.compile(
    rf"""((?<![\w-])(?=[\w-]*{_TELLTALE})(?:[\w-]++["']?\s*[:=](?!=)\s*|--[\w-]++\s+))"""
    r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|[^\s"'&;,}]+)""",
    re.IGNORECASE,
)

_PROBE = """
import importlib.metadata, json, sys
found = {f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions()}
print()
print(json.dumps({"python": sys.version, "packages": sorted(found)}))
"""


class _Interpreter(msgspec.Struct):
    python: str
    packages: list[str]


def collect(
    python: str | Path,
    *,
    tree: evidence.Repository | None = None,
    gpus: Sequence[evidence.Gpu] = (),
    variables: Mapping[str, str] | None = None,
    oversubscribed: bool = False,
) -> evidence.Environment:
    """Collects what ran where; what cannot be found out is said to be unknown, and never raises.

    Args:
        python: The interpreter under test.
        tree: What of the source tree under test ran, which need not be what is checked out.
        gpus: The host's GPUs.
        variables: The environment variables to choose from; by default this process's.
        oversubscribed: Whether several ranks share a device.
    """
    environ = os.environ if variables is None else variables
    interpreter = _interpreter(_absolute(str(python)))
    secrets = _secret_values(environ)
    return evidence.Environment(
        tprig_version=_tprig_version(),
        tprig=repository(_CHECKOUT),
        tree=tree,
        host=platform.node(),
        kernel=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        cpu=_cpu(),
        cpu_count=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        gpus=list(gpus),
        python=redact(interpreter.python, secrets),
        packages=[redact(package, secrets) for package in interpreter.packages],
        variables=redacted_variables(environ),
        oversubscribed=oversubscribed,
    )


# --- variables -------------------------------------------------------------------------------


def redacted_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Chooses the variables that decide what an engine does, with every secret redacted."""
    return {
        name: value
        for name, value in redacted(variables).items()
        if name in _NAMES or name.startswith(_PREFIXES)
    }


def redacted(variables: Mapping[str, str]) -> dict[str, str]:
    """All variables, with every secret redacted.

    A value is redacted whole when its name says that it is a secret. Within other values, what is
    redacted: such a variable's value, user and password of a URL, settings named like a secret,
    and tokens of well-known shapes.
    """
    secrets = _secret_values(variables)
    return {
        printable(name): REDACTED if _is_secret(name) else redact(value, secrets)
        for name, value in sorted(variables.items())
    }


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Returns `text` with the given secrets, and all that looks like one, replaced."""
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    for pattern in (_USER_INFO, _BEARER, _KNOWN_TOKEN):
        text = pattern.sub(rf"\g<1>{REDACTED}\g<2>", text)
    return printable(_SETTING.sub(_redact_setting, text))


def _redact_setting(match: re.Match[str]) -> str:
    return match[1] + REDACTED if _is_secret(match[1]) else match[0]


def _is_secret(name: str) -> bool:
    return _SECRET_NAME.search(_HARMLESS_NAME.sub("", name)) is not None


def _secret_values(variables: Mapping[str, str]) -> list[str]:
    values = {value for name, value in variables.items() if _is_secret(name)}
    # Longest first: one secret may be a part of another.
    return sorted((v for v in values if len(v) >= _MIN_SECRET_CHARACTERS), key=len, reverse=True)


# --- interpreter -----------------------------------------------------------------------------


def _interpreter(python: str) -> _Interpreter:
    probe = _output([python, "-c", _PROBE], PROBE_DEADLINE_S)
    try:
        found = msgspec.json.decode((probe or b"").splitlines()[-1], type=_Interpreter)
    except (IndexError, msgspec.DecodeError):
        return _Interpreter(python=f"unknown: {python} did not answer", packages=[])
    frozen = _output([python, "-m", "pip", "freeze", "--all"], PROBE_DEADLINE_S)
    if frozen:
        found.packages = frozen.decode(errors="backslashreplace").splitlines()
    return found


def _absolute(python: str) -> str:
    # Not resolved: a virtual environment's interpreter is a link, and works by its own name.
    return str(Path(found).absolute()) if (found := shutil.which(python)) else python


def _tprig_version() -> str:
    try:
        return importlib.metadata.version("tprig")
    except importlib.metadata.PackageNotFoundError:
        return "unknown: not installed, run from a checkout"


# --- work trees ------------------------------------------------------------------------------


def repository(path: Path) -> evidence.Repository:
    """The state of the git work tree whose top folder is `path`; all None when it is not one.

    A folder that merely lies within some work tree is not one: that tree's commit is not its own.
    """
    top = _git(path, "rev-parse", "--show-toplevel")
    if top is None or Path(os.fsdecode(top)).resolve() != path.resolve():
        return evidence.Repository(commit=None, base=None, dirty=None, diff_digest=None)
    status = _git(path, "status", "--porcelain", "--untracked-files=normal")
    return evidence.Repository(
        commit=_text(_git(path, "rev-parse", "--verify", "HEAD^{commit}")),
        base=_base(path),
        dirty=None if status is None else bool(status),
        diff_digest=_diff_digest(path) if status else None,
    )


def _base(path: Path) -> str | None:
    for branch in ("@{upstream}", "origin/HEAD", "origin/main", "main"):
        if base := _git(path, "merge-base", "HEAD", branch):
            return _text(base)
    return None


def _diff_digest(path: Path) -> str | None:
    """On a copy of the index: `git diff` refreshes the one it reads, whatever it is told."""
    index = _git(path, "rev-parse", "--path-format=absolute", "--git-path", "index")
    if index is None:
        return None
    with tempfile.TemporaryDirectory(prefix="tprig-index-") as scratch:
        copy = Path(scratch) / "index"
        try:
            shutil.copy2(os.fsdecode(index), copy)
        except OSError:
            return None
        # New files are part of what ran; their contents show once the index means to add them.
        if _git(path, "add", "--intent-to-add", "--all", index=copy) is None:
            return None
        options = ("--no-ext-diff", "--no-textconv", "--no-color", "--full-index")
        diff = _git(path, "diff", *options, "HEAD", strip=False, index=copy)
    return None if diff is None else hashlib.sha256(diff).hexdigest()


def _text(output: bytes | None) -> str | None:
    return output.decode(errors="replace") if output else None


def _git(
    path: Path, *arguments: str, strip: bool = True, index: Path | None = None
) -> bytes | None:
    """Runs git in `path` without side effects; None when it fails or is not there."""
    # A hook's GIT_DIR and its like would point at another work tree.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    settings = ("core.fsmonitor=false", "diff.noprefix=false", "diff.mnemonicPrefix=false")
    options = [word for setting in settings for word in ("-c", setting)]
    output = _output(
        [shutil.which("git") or "git", "-C", str(path.resolve()), *options, *arguments],
        GIT_DEADLINE_S,
        variables
        | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
        | ({} if index is None else {"GIT_INDEX_FILE": str(index)}),
    )
    return output.removesuffix(b"\n") if output is not None and strip else output


# --- host and processes ----------------------------------------------------------------------


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in _CPU_INFO.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or f"unknown: {_CPU_INFO} names no model"


def _output(
    command: Sequence[str], deadline_s: float, variables: Mapping[str, str] | None = None
) -> bytes | None:
    """Returns what a command printed; None when it fails, is not there or takes too long."""
    try:
        done = run(command, deadline_s=deadline_s, variables=variables)
    except CommandError:
        return None
    return done.stdout if done.returncode == 0 else None
