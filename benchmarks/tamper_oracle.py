"""Changes one number of a captured call at a time, and counts how often `tprig check` notices.

    python benchmarks/tamper_oracle.py BUNDLE [--copies 20] [--seed 0]

BUNDLE holds captured calls and passes. A logit, a seed, a boundary, a position, a draft token, a
draft logit or a returned token is changed in a random place, and the manifest is redone: the check
must end 1, show the anomaly of that kind and no other, and name the call and the tensor. Prints a
line per kind and a summary last; exits 1 when anything goes unnoticed.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.tamper import asked, check, copied
from tprig.bundle import seal

Arrays = dict[str, NDArray[Any]]
Place = Callable[[Arrays, random.Random], tuple[int, ...]]


def anywhere(name: str) -> Place:
    """Any element of a tensor."""

    def place(tensors: Arrays, rng: random.Random) -> tuple[int, ...]:
        return tuple(rng.randrange(size) for size in tensors[name].shape)

    return place


def boundary(tensors: Arrays, rng: random.Random) -> tuple[int, ...]:
    """Any boundary but the first, which is 0."""
    return (rng.randrange(1, len(tensors["cu_num_logits"])),)


def draft(tensors: Arrays, rng: random.Random) -> tuple[int, ...]:
    """The input of a row of logits that holds a draft."""
    rows = np.flatnonzero(tensors["expanded_local_pos"] > 0)
    return (int(tensors["logits_indices"][rng.choice(rows.tolist())]),)


KINDS: dict[str, tuple[str, str, Place]] = {
    "logit": ("oracle.record.logits", "logits", anywhere("logits")),
    "seed": ("oracle.record.seeds", "seeds", anywhere("seeds")),
    "boundary": ("oracle.record.boundaries", "cu_num_logits", boundary),
    "position": ("oracle.record.positions", "positions", anywhere("positions")),
    "draft token": ("oracle.record.draft-tokens", "input_ids", draft),
    "draft logit": ("oracle.record.draft-logits", "draft_logits", anywhere("draft_logits")),
    "returned token": ("oracle.record.returned", "sampled", anywhere("sampled")),
}
"""Kind -> the anomaly that names it, the tensor that holds it, and where it is changed."""


def changed(file: Path, kind: str, rng: random.Random) -> None:
    """Change one element of a file of tensors: a float by one step, an integer by one."""
    _, name, place = KINDS[kind]
    tensors = {key: array.copy() for key, array in load_file(file).items()}
    at = place(tensors, rng)
    array = tensors[name]
    if array.dtype.kind == "f":
        array[at] = np.nextafter(array[at], array.dtype.type(np.inf), dtype=array.dtype)
    else:
        array[at] += 1 if rng.random() < 0.5 or not array[at] else -1
    file.unlink()
    save_file(tensors, file)


def noticed(bundle: Path, kind: str, rng: random.Random) -> bool:
    """Whether one change in a copy is found as what it is, with call and tensor named."""
    anomaly, name, _ = KINDS[kind]
    files = sorted(bundle.glob("oracles/*/tensors.safetensors"))
    files = [file for file in files if name in load_file(file)]
    if not files:
        raise SystemExit(f"no captured call holds {name}: capture with probabilistic drafts")
    file = rng.choice(files)
    with tempfile.TemporaryDirectory(dir=bundle.parent) as folder:
        copy = copied(bundle, Path(folder))
        changed(copy / file.relative_to(bundle), kind, rng)
        seal(copy)
        code, output = check(copy)
    verdicts = json.loads(output)["verdicts"]
    shown = {each for verdict in verdicts for each in verdict["failures"]}
    named = any(
        finding["anomaly"] == anomaly
        and finding["message"].startswith(f"expected {name} ")
        and file.parent.name in finding["where"]["file"]
        for verdict in verdicts
        for finding in verdict["findings"]
    )
    if code == 1 and named and shown == {anomaly}:
        return True
    print(f"UNNOTICED: {kind} of call {file.parent.name}: exit {code}, {sorted(shown)}")
    return False


def main() -> int:
    """Tamper, count, and judge."""
    bundle, copies, rng = asked(__doc__, copies=20)
    missed = 0
    for kind in KINDS:
        found = sum(noticed(bundle, kind, rng) for _ in range(copies))
        print(f"one {kind} changed, {copies} copies: {found} noticed as {KINDS[kind][0]}, exit 1")
        missed += copies - found
    print(f"{missed} changes went unnoticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
