"""Puts captured calls into a bundle: `oracles/<id>/`, where the id is a digest of the content."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tprig_inject.recorders.stages import DIGEST_BYTES, tensor_digest

DOCUMENT = "call.json"
TENSORS = "tensors.safetensors"
VERSION = 1
"""Of the captured call; `tprig.evidence` follows it."""


def described(
    inputs: Mapping[str, Any], outputs: Mapping[str, Any], most_bytes: int
) -> list[dict[str, Any]]:
    """An entry per tensor: `name`, `role`, `dtype`, `shape`, `digest`, `stored`, sorted by name.

    Args:
        inputs: by name.
        outputs: by name.
        most_bytes: processed logits beyond it are kept as a digest: a replay makes them again.
    """
    processed = {"processed_logits": outputs["processed_logits"]}
    left_out = set() if size_bytes(processed) <= most_bytes else set(processed)
    roles = [("input", inputs), ("output", outputs)]
    return sorted(
        (
            {
                "name": name,
                "role": role,
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "digest": tensor_digest(tensor),
                "stored": name not in left_out,
            }
            for role, tensors in roles
            for name, tensor in tensors.items()
        ),
        key=lambda entry: str(entry["name"]),
    )


def document(
    tensors: list[dict[str, Any]], flags: Mapping[str, Any], requests: list[str]
) -> dict[str, Any]:
    """The `call.json` of a captured call; it says nothing of the rank that captured it."""
    return {
        "version": VERSION,
        "tensors": tensors,
        "flags": dict(flags),
        "requests": requests,
    }


def call_id(call: Mapping[str, Any]) -> str:
    """BLAKE2b-128 of the call's canonical JSON, in hex."""
    text = json.dumps(call, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()


def size_bytes(tensors: Mapping[str, Any]) -> int:
    """Of all elements."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def keep(root: Path, name: str, call: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Write a call, unless it is there: ranks that captured the same keep it once.

    Raises:
        OSError: if it cannot be written; nothing of it stays.
    """
    from safetensors.torch import save_file

    target = root / name
    if target.exists():
        return
    root.mkdir(parents=True, exist_ok=True)
    temporary = root / f".{name}.{os.getpid()}"
    temporary.mkdir()
    try:
        stored = {entry["name"] for entry in call["tensors"] if entry["stored"]}
        kept = {name: tensor for name, tensor in tensors.items() if name in stored}
        save_file(kept, temporary / TENSORS)
        (temporary / DOCUMENT).write_text(json.dumps(call, indent=1, sort_keys=True) + "\n")
        # The other rank may have been faster; then its folder stands.
        with contextlib.suppress(FileExistsError):
            _move(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        if target.exists():
            raise FileExistsError(str(target)) from error
        raise
