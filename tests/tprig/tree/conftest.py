"""A small vLLM repository, a build of it that is installed, and an interpreter that finds it."""

import compileall
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tprig.tree import Overlay, overlay

MODULES = 30
SOURCES = {
    "vllm/__init__.py": "from vllm.a import WHAT\n",
    "vllm/a.py": "WHAT = 'base'\n",
    "vllm/gone.py": "HERE = True\n",
    "vllm/patched.py": "MADE_FOR = 'everyone'\n",
    "vllm/pkg/__init__.py": "",
    "vllm/pkg/data.json": '{"from": "base"}\n',
    "vllm/pkg/notes.md": "Not shipped.\n",
    "vllm/pkg/where.py": (
        "import json, os\n"
        "HERE = os.path.dirname(os.path.realpath(__file__))\n"
        "DATA = json.load(open(os.path.join(HERE, 'data.json')))\n"
    ),
    "vllm/tool.sh": "#!/bin/sh\n",
    **{f"vllm/pkg/m{number}.py": f"NUMBER = {number}\n" for number in range(MODULES)},
    "csrc/kernel.cu": "// kernel\n",
    "csrc/sub/other.cu": "// other\n",
    "cmake/utils.cmake": "# cmake\n",
    "rust/src/lib.rs": "// rust\n",
    "rust-toolchain.toml": "[toolchain]\n",
    "requirements/common.txt": "torch\n",
    "CMakeLists.txt": "# cmake\n",
    "setup.py": "# setup\n",
    "docs/index.md": "# docs\n",
    ".gitignore": "*.so\n__pycache__/\n/vllm/_version.py\n/vllm/flash/\n",
}
GENERATED = {
    "vllm/_C.abi3.so": "binary\n",
    "vllm/flash/interface.py": "MADE_BY = 'the build'\n",
    "vllm/_version.py": "__version__ = version = '1.2.3'\n__commit_id__ = commit_id = None\n",
}
NOT_SHIPPED = "vllm/pkg/notes.md"


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
    )
    return done.stdout.strip()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@dataclass(frozen=True)
class Stage:
    """A work tree at tag v1.2.3, and a build of it in `site`."""

    work: Path
    site: Path
    root: Path

    def git(self, *arguments: str) -> str:
        return git(self.work, *arguments)

    def write(self, name: str, text: str) -> None:
        write(self.work, {name: text})

    def commit(self, message: str = "change") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")

    def build_says(self, version: str, commit: str | None = None) -> None:
        """What `_version.py` of the installed build says."""
        text = f"__version__ = version = {version!r}\n\n__commit_id__ = commit_id = {commit!r}\n"
        write(self.site, {"vllm/_version.py": text})

    def python(self, path: Path | None = None) -> str:
        """An interpreter that has vLLM installed in `site`, or has it from `path`."""
        script = self.root.parent / "python"
        script.write_text(
            f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{path or self.site}" '
            f'exec "{sys.executable}" -S "$@"\n'
        )
        script.chmod(0o755)
        return str(script)

    def overlay(self, revision: str | None = None, base: str | None = None) -> Overlay:
        text = str(self.work) if revision is None else f"{self.work}@{revision}"
        return overlay(text, self.python(), self.root, base)

    def run(self, laid: Overlay, code: str) -> str:
        """What Python prints with the overlay in place, as the template puts it there."""
        done = subprocess.run(
            [self.python(), "-c", code],
            check=True,
            capture_output=True,
            text=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(laid.folder)},
        )
        return done.stdout.strip()


def made(folder: Path) -> tuple[Path, Path]:
    """The work tree and the installed build, in `folder`."""
    # Both characters are those that a shell, and a revision, would trip over.
    work, site = folder / "work tree@home", folder / "site"
    work.mkdir()
    write(work, SOURCES)
    (work / "vllm/tool.sh").chmod(0o755)
    git(work, "init", "-q", "-b", "main")
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "base")
    git(work, "tag", "v1.2.3")
    shutil.copytree(work / "vllm", site / "vllm")
    (site / NOT_SHIPPED).unlink()
    write(site, GENERATED)
    compileall.compile_dir(site, quiet=2)
    write(site, {"vllm-1.2.3.dist-info/METADATA": "Name: vllm\nVersion: 1.2.3\n"})
    return work, site


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    made(folder)
    return folder


@pytest.fixture
def stage(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.delenv("TPRIG_VLLM_BASE", raising=False)
    folder = tmp_path / "stage"
    shutil.copytree(model, folder)
    return Stage(folder / "work tree@home", folder / "site", tmp_path / "overlays")


def files(folder: Path) -> dict[str, str]:
    """The contents of a package's files without bytecode, by their paths beside it."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted((folder / "vllm").rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Everything in a work tree, its repository included: contents and times."""
    return {
        str(path.relative_to(folder)): (
            path.read_bytes(),
            # Whoever reads a split index marks its shared part as in use.
            0 if path.name.startswith("sharedindex.") else path.stat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
