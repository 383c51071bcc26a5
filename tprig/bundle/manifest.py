"""The manifest: what a bundle holds, by size and SHA-256, under one root digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from tprig import evidence
from tprig.bundle import files, records
from tprig.bundle.files import MANIFEST, BundleError, printable
from tprig.bundle.records import CutError, MalformedError
from tprig.bundle.tree import Tree

Fault = tuple[str, str]
"""A file's path, and what is wrong with it."""


def seal(root: Path, bundle: str | None = None) -> evidence.Manifest:
    """Writes `manifest.json` over every file below `root`, replacing an older one.

    Args:
        root: The bundle's folder.
        bundle: The bundle's id; by default the older manifest's, else the folder's name.

    Raises:
        BundleError: when the folder holds what a bundle may not, or the manifest cannot be written.
    """
    with Tree(root) as tree, files.reporting(MANIFEST, "the bundle is not sealed; its files stay"):
        name = bundle or _former_id(tree) or files.bundle_id(root)
        manifest = _manifest(name, list(_entries(tree)))
        files.replace(root / MANIFEST, files.encode_document(manifest))
    return manifest


def _manifest(bundle: str, entries: list[evidence.FileEntry]) -> evidence.Manifest:
    return evidence.Manifest(
        version=evidence.SCHEMA_VERSION,
        bundle=bundle,
        files=entries,
        root=root_digest(evidence.SCHEMA_VERSION, bundle, entries),
    )


def root_digest(version: int, bundle: str, entries: Sequence[evidence.FileEntry]) -> str:
    """SHA-256 over the canonical JSON of `[version, bundle, entries]`."""
    return hashlib.sha256(files.encode([version, bundle, entries])).hexdigest()


def _former_id(tree: Tree) -> str | None:
    try:
        return read(tree).bundle
    except (OSError, MalformedError, CutError):
        return None


def _entries(tree: Tree) -> Iterator[evidence.FileEntry]:
    inventory = tree.inventory()
    for path, fault in inventory.faults.items():
        raise BundleError(f"the bundle cannot be sealed: '{printable(path)}' {fault}")
    for path in sorted(inventory.sizes_bytes):
        if path != MANIFEST:
            yield _entry(tree, files.checked_path(path))


def _entry(tree: Tree, path: str) -> evidence.FileEntry:
    with tree.open(path) as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
        return evidence.FileEntry(path=path, size_bytes=handle.tell(), sha256=digest)


def read(tree: Tree) -> evidence.Manifest:
    """Reads the manifest and checks it against itself.

    Raises:
        MalformedError: when it does not fit the schema, or is not byte for byte what tprig writes.
        CutError: when it is not whole JSON.
        OSError: when it cannot be read.
    """
    with tree.open(MANIFEST) as handle:
        data = records.read_bytes(handle)
    manifest = records.decode_document(data, evidence.Manifest)
    _check_paths([entry.path for entry in manifest.files])
    if manifest.root != root_digest(manifest.version, manifest.bundle, manifest.files):
        raise MalformedError("has a root digest that is not its entries': it was changed")
    if files.encode_document(manifest) != data:
        raise MalformedError("is not byte for byte what tprig writes: it was changed")
    return manifest


def _check_paths(paths: Sequence[str]) -> None:
    for path in paths:
        if fault := "lists itself" if path == MANIFEST else files.path_fault(path):
            raise MalformedError(f"names the file '{printable(path)}', which {fault}")
    for one, other in pairwise(paths):
        if one == other:
            raise MalformedError(f"names the file '{one}' more than once")
        if one > other:
            raise MalformedError(f"names '{other}' after '{one}': the paths must be sorted")


def verify(tree: Tree, manifest: evidence.Manifest, sizes_bytes: dict[str, int]) -> Iterator[Fault]:
    """Compares the files that are there with the manifest.

    Args:
        tree: The bundle.
        manifest: What should be there.
        sizes_bytes: The regular files that are there: path -> size.

    Yields:
        A path and what is wrong with it, for each file that differs, lacks or is not listed.
    """
    listed = {entry.path for entry in manifest.files}
    for entry in manifest.files:
        if fault := _difference(tree, entry, sizes_bytes.get(entry.path)):
            yield entry.path, fault
    for path in sorted(sizes_bytes.keys() - listed - {MANIFEST}):
        yield path, "is not listed in the manifest: it was added after the bundle was sealed"


def _difference(tree: Tree, entry: evidence.FileEntry, size_bytes: int | None) -> str | None:
    if size_bytes is None:
        return "is listed in the manifest and not there"
    if size_bytes != entry.size_bytes:
        return f"has {size_bytes} bytes; the manifest says {entry.size_bytes}"
    try:
        found = _entry(tree, entry.path).sha256
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if found != entry.sha256:
        return f"has SHA-256 {found}; the manifest says {entry.sha256}: it was changed"
    return None
