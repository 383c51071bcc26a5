"""What an overlay holds: the installed build's files, with the tree's changes laid over them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tprig.tree.changes import BASE_VARIABLE, DELETED, Base, Entry, tracked
from tprig.tree.errors import TreeError, some
from tprig.tree.git import Git
from tprig.tree.installed import build_files

FORMAT = 1
"""Raised when overlays are built otherwise, so that older ones are no longer taken."""

MAX_PATCHED_SHARE = 0.1
"""A packager patches a few files; a build that differs in more was made from something else."""

_REGULAR_MODES = ("100644", "100755")


@dataclasses.dataclass(frozen=True)
class File:
    """A source to be written.

    `mtime_ns` is that of the file it was read from, by which compiled bytecode stays valid.
    """

    data: bytes
    executable: bool
    mtime_ns: int | None = None


@dataclasses.dataclass(frozen=True)
class Content:
    """Everything in an overlay's folder, by its path there.

    Attributes:
        copies: The sources. They are no links, for some find their neighbours by where they
            really lie (`os.path.realpath(__file__)`).
        links: What the build made: binaries and generated files.
        bytecode: Compiled sources, linked to for the time that they spare.
        patched: The sources that the build has otherwise than the base, sorted.
    """

    copies: Mapping[str, File]
    links: Mapping[str, Path]
    bytecode: Mapping[str, Path]
    patched: tuple[str, ...]

    @property
    def key(self) -> str:
        """SHA-256 over all but the bytecode, shortened to 16 hex digits."""
        total = hashlib.sha256(f"{FORMAT}\n".encode())
        for name, file in sorted(self.copies.items()):
            digest = hashlib.sha256(file.data).hexdigest()
            total.update(os.fsencode(f"{name}\0{file.executable}\0{digest}\n"))
        for name, path in sorted(self.links.items()):
            total.update(os.fsencode(f"{name}\0{path}\n"))
        return total.hexdigest()[:16]

    def write(self, folder: Path) -> None:
        """Writes all of it into an empty folder."""
        links = {**self.links, **self.bytecode}
        for parent in {(folder / name).parent for name in (*self.copies, *links)}:
            parent.mkdir(parents=True, exist_ok=True)
        for name, file in self.copies.items():
            path = folder / name
            path.write_bytes(file.data)
            # Not writable: a path in a traceback should not lead to edits here.
            path.chmod(0o555 if file.executable else 0o444)
            if file.mtime_ns is not None:
                os.utime(path, ns=(file.mtime_ns, file.mtime_ns))
        for name, target in links.items():
            (folder / name).symlink_to(target)


def compose(git: Git, package: Path, base: Base, changes: Mapping[str, Entry]) -> Content:
    """Lays changes over the build that is installed in `package`.

    A source that the tree leaves as the base has it stays as the build has it.

    Raises:
        TreeError: when the build is not of that base, or the tree changes what its packager did.
    """
    before, built = tracked(git, base), build_files(package)
    after = {n: entry for n, entry in {**before, **changes}.items() if entry.mode != DELETED}
    own = {n: _read(path) for n, path in built.items() if n in before or n in changes}
    stay = {n: own[n] for n in after if n in own and n not in changes}
    taken = _take(git, {n: entry for n, entry in after.items() if n not in stay})
    ids = {n: entry.blob for n, entry in before.items()}
    patched = sorted(n for n, file in own.items() if base.blob_id(file.data) != ids.get(n))
    _refuse_other_build(base, patched, len(own))
    again = [n for n in patched if n in changes]
    _refuse_changed_twice(
        base, [n for n in again if n not in taken or own[n].data != taken[n].data]
    )
    links = {n: path for n, path in built.items() if n not in own and not _is_bytecode(n)}
    return Content(
        copies=stay | taken,
        links=links,
        bytecode={n: built[n] for n in filter(_is_bytecode, built) if _source(n) in stay | links},
        patched=tuple(n for n in patched if n in stay),
    )


def _read(path: Path) -> File:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        return File(file.read(), bool(status.st_mode & 0o100), status.st_mtime_ns)


def _take(git: Git, entries: Mapping[str, Entry]) -> dict[str, File]:
    """The files whose content is the tree's, from the repository or else from the work tree."""
    odd = [name for name, entry in entries.items() if entry.mode not in _REGULAR_MODES]
    if odd:
        raise TreeError(
            expected="regular files under vllm/",
            found=f"symbolic links or submodules: {some(odd)}",
            rule="an overlay holds copies, in which a link would lead elsewhere",
            remedy="put files in their place",
        )
    blobs = git.blobs([entry.blob for entry in entries.values() if entry.blob is not None])
    contents = iter(blobs)
    taken = {}
    for name, entry in entries.items():
        if entry.blob is None:
            taken[name] = _read(git.folder / name)
        else:
            taken[name] = File(next(contents), entry.mode == "100755")
    return taken


def _is_bytecode(name: str) -> bool:
    return "/__pycache__/" in name


def _source(bytecode: str) -> str:
    folder, _, file = bytecode.partition("/__pycache__/")
    return f"{folder}/{file.partition('.')[0]}.py"


def _refuse_other_build(base: Base, patched: Sequence[str], total: int) -> None:
    if len(patched) > total * MAX_PATCHED_SHARE:
        raise TreeError(
            expected=f"an installed vLLM that was built from {base}",
            found=f"{len(patched)} of its {total} sources differ from that: {some(patched)}",
            rule="under test is the installed build with what the tree changed since its base",
            remedy=f"name the revision that it was built from by {BASE_VARIABLE}",
        )


def _refuse_changed_twice(base: Base, names: Sequence[str]) -> None:
    if names:
        raise TreeError(
            expected=f"an installed build that has as in {base} what the tree changes",
            found=f"its packager changed, too: {some(names)}",
            rule="the build's own changes suit its binaries, and cannot be told from the tree's",
            remedy="name an interpreter with an unpatched build with --tprig-vllm-python, or take "
            "the tree without these changes",
        )
