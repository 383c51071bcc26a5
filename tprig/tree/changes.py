"""What a tree has otherwise than the revision that the installed vLLM was built from."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections.abc import Mapping

from tprig.tree.errors import TreeError, some
from tprig.tree.git import Git
from tprig.tree.installed import Installed

BASE_VARIABLE = "TPRIG_VLLM_BASE"
"""Names the revision that the installed vLLM was built from, where it does not say so itself."""

DECISIVE = (
    *("csrc", "cmake", "rust", "rust-toolchain.toml", "CMakeLists.txt"),
    *("setup.py", "requirements*"),
)
"""Pathspecs of what decides the binaries and the dependencies."""

PACKAGE = "vllm/"

DELETED = "000000"
"""The mode of a file that is not there."""

_STATES = {"A": "added", "D": "deleted", "M": "modified", "T": "of another type"}
_SHA1_DIGITS = 40


@dataclasses.dataclass(frozen=True)
class Base:
    """The revision that the installed vLLM was built from."""

    name: str
    commit: str

    def __str__(self) -> str:
        return f"{self.name} ({self.commit[:12]})"

    def blob_id(self, data: bytes) -> str:
        """Git's id of a file's content, in this repository's format."""
        algorithm = "sha1" if len(self.commit) == _SHA1_DIGITS else "sha256"
        blob = b"blob %d\0" % len(data) + data
        return hashlib.new(algorithm, blob, usedforsecurity=False).hexdigest()


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file of a tree.

    Attributes:
        mode: Git's, in octal.
        blob: Id of the content; None when only the work tree holds it.
        state: How it differs from the base.
    """

    mode: str
    blob: str | None
    state: str = "unchanged"


def head(git: Git, revision: str | None) -> str:
    """The commit that a tree has checked out, or that a revision names.

    Raises:
        TreeError: when there is none, or no vLLM in it.
    """
    name = revision or "HEAD"
    commit = git.commit(name)
    if commit is None:
        raise TreeError(
            expected=f"the revision '{name}'",
            found=f"no commit of that name in {git.folder}",
            rule="a revision is what `git rev-parse` knows; nothing is fetched",
            remedy="fetch it into that clone, or name another",
        )
    if not git.words("ls-tree", "-z", "--name-only", commit, f"{PACKAGE}__init__.py"):
        raise TreeError(
            expected="a vLLM tree",
            found=f"no {PACKAGE}__init__.py in {git.folder} at {commit[:12]}",
            rule="the package lies in vllm/ at the top of the tree",
            remedy="name the top folder of a vLLM clone",
        )
    return commit


def find_base(git: Git, installed: Installed, named: str | None) -> Base:
    """The revision that the installed vLLM was built from: as named, or by the build's own word.

    Raises:
        TreeError: when the tree has no such revision.
    """
    revisions = {named: named} if named else installed.revisions
    for name, revision in revisions.items():
        if commit := git.commit(revision):
            return Base(name, commit)
    shallow = git.line("rev-parse", "--is-shallow-repository") == "true"
    fetch = f"git -C {shlex.quote(str(git.folder))} fetch --tags{' --unshallow' * shallow}"
    raise TreeError(
        expected=f"what the installed vLLM {installed.version or ''} was built from, in the tree",
        found=f"no {' or '.join(revisions) or 'hint of it'} in {git.folder}"
        + ", a shallow clone" * shallow,
        rule="only against it can be told whether the installed binaries fit the tree",
        remedy=f"run `{fetch}`, or name the revision by {BASE_VARIABLE}",
    )


def tracked(git: Git, base: Base) -> dict[str, Entry]:
    """The files of the package at the base."""
    entries = {}
    for word in git.words("ls-tree", "-r", "-z", base.commit, PACKAGE):
        meta, _, name = word.partition("\t")
        mode, _, blob = meta.split()
        entries[name] = Entry(mode, blob)
    return entries


def changed(git: Git, base: Base, commit: str | None) -> dict[str, Entry]:
    """The files of the package that are otherwise in `commit`, or in the work tree when it is None.

    Raises:
        TreeError: when what decides the binaries and dependencies is otherwise as well.
    """
    options = ("--raw", "-z", "--no-abbrev", "--no-renames", "--no-relative")
    revisions = [base.commit, commit] if commit else [base.commit]
    paths = ("--", *DECISIVE, PACKAGE)
    words = git.words("diff", *options, "--ignore-submodules=none", *revisions, *paths)
    entries = {}
    for meta, name in zip(words[::2], words[1::2], strict=True):
        _, mode, _, blob, status = meta.split()
        entries[name] = Entry(mode, blob if blob.strip("0") else None, _STATES.get(status, status))
    if commit is None:
        untracked = git.words("ls-files", "-z", "--others", "--exclude-standard", *paths)
        entries |= {n: Entry("100644", None, "untracked") for n in untracked if _counts(git, n)}
    _refuse_other_binaries(base, entries)
    return entries


def dirty(git: Git) -> bool:
    """Whether the package in the work tree holds what is not committed."""
    return bool(git.output("status", "--porcelain", "--untracked-files=normal", "--", PACKAGE))


def _counts(git: Git, untracked: str) -> bool:
    # Of the package only files matter: not an editor's dangling lock, nor a repository within.
    return not untracked.startswith(PACKAGE) or (git.folder / untracked).is_file()


def _refuse_other_binaries(base: Base, entries: Mapping[str, Entry]) -> None:
    decisive = [
        f"{name} ({entry.state})"
        for name, entry in sorted(entries.items())
        if not name.startswith(PACKAGE)
    ]
    if decisive:
        raise TreeError(
            expected=f"{', '.join(DECISIVE)} as in {base}, which the installed vLLM was built from",
            found=some(decisive),
            rule="they decide the binaries and dependencies, which stay the installed build's",
            remedy="undo these changes, or build the tree and name the interpreter that has it "
            "with --tprig-vllm-python",
        )
