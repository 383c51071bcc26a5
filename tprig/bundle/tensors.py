"""Reads the tensors of a bundle: safetensors, checked before a byte of them is believed."""

from __future__ import annotations

from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
from numpy.typing import NDArray

from tprig.bundle.records import MalformedError
from tprig.bundle.tree import Tree
from tprig.evidence import CallTensor

MAX_HEADER_BYTES = 1 << 20
DTYPES: Mapping[str, tuple[str, str]] = {
    "BOOL": ("bool", "?"),
    "U8": ("uint8", "u1"),
    "I8": ("int8", "i1"),
    "I16": ("int16", "<i2"),
    "I32": ("int32", "<i4"),
    "I64": ("int64", "<i8"),
    "F16": ("float16", "<f2"),
    # NumPy has no such type: the bits are handed on.
    "BF16": ("bfloat16", "<u2"),
    "F32": ("float32", "<f4"),
    "F64": ("float64", "<f8"),
}
"""safetensors' name -> the schema's, and NumPy's."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def check_header(handle: BufferedReader, expected: list[CallTensor]) -> None:
    """Compare the header of a file of tensors with what must be in it.

    Raises:
        MalformedError: when they differ, or it is not in the format.
        OSError: when it cannot be read.
    """
    size = int.from_bytes(handle.read(8), "little")
    if not 0 < size <= MAX_HEADER_BYTES:
        raise MalformedError(f"has a header of {size} bytes; the limit is {MAX_HEADER_BYTES}")
    try:
        found = msgspec.json.decode(handle.read(size), type=dict[str, _Entry])
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedError(f"has no header in the format of safetensors: {error}") from error
    told = {t.name: (t.dtype, t.shape) for t in expected if t.stored}
    held = {name: (DTYPES.get(e.dtype, ("?", ""))[0], e.shape) for name, e in found.items()}
    for name in sorted(told.keys() | held.keys()):
        if told.get(name) != held.get(name):
            raise MalformedError(
                f"holds '{name}' as {held.get(name)}; call.json says {told.get(name)}"
            )


def read_tensors(root: Path, path: str) -> dict[str, NDArray[Any]]:
    """Read all tensors of a file of a bundle.

    Args:
        root: the bundle.
        path: of the file, in the bundle.

    Raises:
        MalformedError: when it is not in the format, or holds a type that is not in `DTYPES`.
        OSError: when it cannot be read.
    """
    with Tree(root) as tree, tree.open(path) as handle:
        data = handle.read()
    try:
        entries = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise MalformedError(f"is not in the format of safetensors: {error}") from error
    return {name: _array(name, entry) for name, entry in entries}


def _array(name: str, entry: Mapping[str, Any]) -> NDArray[Any]:
    known = DTYPES.get(entry["dtype"])
    if known is None:
        raise MalformedError(f"holds '{name}' as {entry['dtype']}; known are {list(DTYPES)}")
    return np.frombuffer(entry["data"], dtype=known[1]).reshape(entry["shape"])
