"""Builds the folder that lays a work tree over an installed vLLM."""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from pathlib import Path

from tprig.tree.changes import BASE_VARIABLE, changed, dirty, find_base, head
from tprig.tree.content import Content, compose
from tprig.tree.errors import TreeError
from tprig.tree.git import opened
from tprig.tree.installed import ask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overlay:
    """A work tree laid over an installed vLLM.

    Attributes:
        folder: To be put on PYTHONPATH; holds a whole `vllm` package.
        tree: The tree, as it was given.
        path: The work tree's top folder.
        commit: What the tree has checked out, or the revision that was asked for.
        base: The commit that the installed vLLM was built from.
        dirty: True when the work tree's `vllm/` was taken with what `commit` does not hold.
        changed: Files under `vllm/` that the tree has otherwise than the base, sorted.
        patched: Files under `vllm/` that the installed build has otherwise than the base, sorted:
            its packager made them suit the binaries, so they stay as they are installed.
    """

    folder: Path
    tree: str
    path: Path
    commit: str
    base: str
    dirty: bool
    changed: tuple[str, ...]
    patched: tuple[str, ...]


def parse(text: str) -> tuple[Path, str | None]:
    """Splits `PATH` or `PATH@REV`; either may hold an `@`: the longest path that exists is taken.

    Raises:
        TreeError: when the path or the revision is empty.
    """
    # os.path's, for it leaves the home of a user who does not exist as it is.
    whole = os.path.expanduser(text)  # noqa: PTH111
    ends = [len(whole), *(match.start() for match in re.finditer("@", whole))]
    existing = [end for end in ends if end and Path(whole[:end]).exists()]
    end = max(existing, default=ends[-1])
    path, revision = whole[:end], whole[end + 1 :] if end < len(whole) else None
    if not path or revision == "":
        raise TreeError(
            expected="PATH or PATH@REV",
            found=f"'{text}', which names no {'revision' if path else 'path'}",
            rule="a tree is a folder, and may be taken at one of its revisions",
            remedy="name both, or leave the '@' out",
        )
    return Path(path).absolute(), revision


def overlay(text: str, python: str, root: Path, base: str | None = None) -> Overlay:
    """Lays the Python of a work tree over the vLLM that an interpreter has installed.

    The overlay is a folder of its own under `root`, named by its content and taken again when it
    is there. Sources in it are copies: a later edit of the work tree changes nothing.

    Args:
        text: `PATH`, the work tree as it stands with all that is not committed, or `PATH@REV`.
        python: The interpreter that has vLLM installed.
        root: Where overlays are kept.
        base: The revision that the installed vLLM was built from; by default what `BASE_VARIABLE`
            names, else what the build says of itself.

    Raises:
        TreeError: when the tree, the interpreter or the base cannot be had, or do not go together.
    """
    path, revision = parse(text)
    base = base or os.environ.get(BASE_VARIABLE)
    try:
        return _overlay(text, path, revision, python, root, base)
    except OSError as error:
        raise TreeError(
            expected="to read the tree and the installed vLLM, and to write the overlay",
            found=f"{error.filename or root}: {error.strerror or error}",
            rule="an overlay is built whole or not at all",
            remedy="see to the cause (a full disk, a file that is edited meanwhile), then retry",
        ) from error


def _overlay(
    text: str, path: Path, revision: str | None, python: str, root: Path, named: str | None
) -> Overlay:
    with opened(path) as git:
        commit = head(git, revision)
        installed = ask(python)
        base = find_base(git, installed, named)
        changes = changed(git, base, commit if revision else None)
        content = compose(git, installed.folder, base, changes)
        return Overlay(
            folder=_build(root.absolute(), content),
            tree=text,
            path=path,
            commit=commit,
            base=base.commit,
            dirty=revision is None and dirty(git),
            changed=tuple(sorted(changes)),
            patched=content.patched,
        )


def _build(root: Path, content: Content) -> Path:
    """The overlay's folder; it appears whole, by a rename, or not at all."""
    folder = root / content.key
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=root) as scratch:
        built = Path(scratch) / folder.name
        content.write(built)
        try:
            built.rename(folder)
        except OSError:
            # Someone else may have built the same meanwhile.
            if not folder.is_dir():
                raise
    return folder
