"""Reads a git repository without any side effect on it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tprig.tree.errors import TreeError
from tprig.tree.process import reason, run

# The work tree itself is looked at, and the content where only times have changed; a copy of a
# split index stays out of the repository.
_SETTINGS = ("core.fsmonitor=false", "diff.autoRefreshIndex=true", "core.splitIndex=false")
# With no protocol allowed, a partial clone does not fetch what it lacks.
_VARIABLES = {"GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none", "LC_ALL": "C"}


@dataclasses.dataclass(frozen=True)
class Git:
    """Git in a folder. All but `run` and `commit` raise `TreeError` when git fails.

    Attributes:
        folder: Where it runs.
        index: A copy to use in place of the work tree's index, which even `git diff` rewrites.
    """

    folder: Path
    index: Path | None = None

    def run(self, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Runs a git command, which may fail."""
        # A hook's GIT_DIR and its like would point at another work tree.
        variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_") or name.startswith("GIT_CONFIG_")
        }
        variables |= _VARIABLES
        if self.index is not None:
            variables["GIT_INDEX_FILE"] = str(self.index)
        options = [word for setting in _SETTINGS for word in ("-c", setting)]
        return run(["git", "-C", str(self.folder), *options, *arguments], variables, data)

    def output(self, *arguments: str, data: bytes = b"") -> bytes:
        """What a command printed, which may not fail."""
        done = self.run(*arguments, data=data)
        if done.returncode:
            raise TreeError(
                expected="a git work tree of vLLM",
                found=f"{self.folder}: {reason(done.stderr)}",
                rule="git tells what a tree has changed",
                remedy="name the top folder of a vLLM clone that git can read",
            )
        return done.stdout

    def line(self, *arguments: str) -> str:
        """What a command printed, on one line."""
        return os.fsdecode(self.output(*arguments).removesuffix(b"\n"))

    def words(self, *arguments: str) -> list[str]:
        """What a command with `-z` printed."""
        return [os.fsdecode(word) for word in self.output(*arguments).split(b"\0")[:-1]]

    def commit(self, name: str) -> str | None:
        """The full id of a commit; None when there is none of that name."""
        done = self.run("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
        return None if done.returncode else done.stdout.decode().strip()

    def blobs(self, ids: Sequence[str]) -> list[bytes]:
        """The contents of blobs, in order."""
        done = self.run("cat-file", "--batch", data="".join(f"{i}\n" for i in ids).encode())
        output = io.BytesIO(done.stdout)
        contents = []
        for blob in ids:
            header = output.readline().split()
            if header[1:2] != [b"blob"]:
                raise TreeError(
                    expected=f"the content of blob {blob}, a file of the tree, in {self.folder}",
                    found=f"it is not there: {reason(done.stderr)}",
                    rule="nothing is fetched; a partial clone lacks what was never checked out",
                    remedy="check the revision out there once, or take a full clone",
                )
            contents.append(output.read(int(header[2])))
            output.read(1)
        return contents


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Git]:
    """Git in a work tree, on a copy of its index.

    Raises:
        TreeError: when `path` is not a work tree's top folder.
    """
    if not path.is_dir():
        raise TreeError(
            expected="a vLLM work tree",
            found=f"no folder {path}",
            rule="a tree is named as PATH or PATH@REV",
            remedy="name the top folder of a vLLM clone",
        )
    git = Git(path)
    top = Path(git.line("rev-parse", "--show-toplevel"))
    if top.resolve() != path.resolve():
        raise TreeError(
            expected="the top folder of a vLLM work tree",
            found=f"{path}, a folder within the work tree {top}",
            rule="a tree is compared whole",
            remedy=f"name {top}, if that is a vLLM clone",
        )
    index = path / git.line("rev-parse", "--git-path", "index")
    with tempfile.TemporaryDirectory(prefix="tprig-index-") as scratch:
        copy = Path(scratch) / "index"
        if index.exists():
            # With its times: by them git tells which entries it has to look at again.
            shutil.copy2(index, copy)
        git = Git(path, copy)
        _unhide(git)
        yield git


def _unhide(git: Git) -> None:
    """Makes the copy of the index show edits that its flags keep from git."""
    entries = [(word[0], word[2:]) for word in git.words("ls-files", "-z", "-v")]
    hidden = [n for tag, n in entries if tag in "hsS" and os.path.lexists(git.folder / n)]
    if hidden:
        names = os.fsencode("".join(f"{name}\0" for name in hidden))
        for flag in ("--no-assume-unchanged", "--no-skip-worktree"):
            git.output("update-index", flag, "-z", "--stdin", data=names)
