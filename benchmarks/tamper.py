"""Changes a passing bundle in one place at a time, and counts how often `tprig check` notices.

    python benchmarks/tamper.py BUNDLE [--copies 100] [--seed 0]

Two kinds of change. A byte of a file, with the manifest left as it is: the check must end 3 and
name the file. A value in the evidence, with the manifest redone: the check must end 1 and name the
anomaly and the row (a token is replaced by another member of its own support, a support loses or
gains a token, a logprob moves by one float32 step, a rank by one, an acceptance count by one).
Prints a line per kind and a summary last; exits 1 when anything goes unnoticed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tprig.bundle import seal
from tprig.cli import main as tprig

Record = dict[str, Any]
Edit = Callable[[Record, random.Random], str | None]
"""Changes a record in place; returns the request it touched, None when it found nothing to do."""


def copied(bundle: Path, folder: Path) -> Path:
    """A copy whose unchanged files are the bundle's own."""
    return Path(shutil.copytree(bundle, folder / "copy", copy_function=os.link))


def check(bundle: Path) -> tuple[int, str]:
    """Exit code and output of `tprig check`."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = tprig(["check", "--json", str(bundle)])
    return code, output.getvalue()


# --- bytes -------------------------------------------------------------------------------------


def bytes_noticed(bundle: Path, rng: random.Random) -> tuple[int, int]:
    """(noticed, tried): one byte of every file."""
    files = sorted(p.relative_to(bundle) for p in bundle.rglob("*") if p.is_file())
    noticed = 0
    tried = 0
    for name in files:
        if not (size := (bundle / name).stat().st_size):
            continue
        tried += 1
        with tempfile.TemporaryDirectory(dir=bundle.parent) as folder:
            copy = copied(bundle, Path(folder))
            data = bytearray((copy / name).read_bytes())
            data[rng.randrange(size)] ^= 1 << rng.randrange(8)
            (copy / name).unlink()
            (copy / name).write_bytes(data)
            code, output = check(copy)
        if code == 3 and str(name) in output:
            noticed += 1
        else:
            print(f"UNNOTICED: a byte of {name}: exit {code}")
    return noticed, tried


# --- values ------------------------------------------------------------------------------------


def _row(record: Record, rng: random.Random) -> tuple[int, Record] | None:
    if record["type"] != "emission" or not record["rows"] or record["supports"] is None:
        return None
    index = rng.randrange(len(record["rows"]))
    return index, record["rows"][index]


def token(record: Record, rng: random.Random) -> str | None:
    """The emitted token becomes another member of its support."""
    if (found := _row(record, rng)) is None:
        return None
    index, row = found
    others = [t for t in record["supports"][index] if t != row["token_id"]]
    if not others:
        return None
    row["token_id"] = rng.choice(others)
    return str(record["request"])


def support(record: Record, rng: random.Random) -> str | None:
    """A support loses a token, or gains one that it lacks."""
    if (found := _row(record, rng)) is None:
        return None
    members = record["supports"][found[0]]
    if rng.random() < 0.5 and len(members) > 1:
        members.pop(rng.randrange(len(members)))
    else:
        members.append(next(t for t in range(2, 10**6) if t not in set(members)))
    return str(record["request"])


def logprob(record: Record, rng: random.Random) -> str | None:
    """The emitted token's logprob moves by one float32 step."""
    if (found := _row(record, rng)) is None:
        return None
    row = found[1]
    row["logprob"] = float(np.nextafter(np.float32(row["logprob"]), np.float32(-np.inf)))
    return str(record["request"])


def rank(record: Record, rng: random.Random) -> str | None:
    """The emitted token's rank moves by one."""
    if (found := _row(record, rng)) is None:
        return None
    found[1]["rank"] += 1
    return str(record["request"])


def acceptance(record: Record, rng: random.Random) -> str | None:
    """One verification rejects one draft more, or one less, than it did."""
    mine = [r for r in record.get("requests", []) if r["draft_token_ids"]]
    if record["type"] != "verification" or not mine:
        return None
    request = rng.choice(mine)
    request["rejected"] += 1 if rng.random() < 0.5 or not request["rejected"] else -1
    return str(request["request"])


VALUES: dict[str, tuple[str, Edit]] = {
    "token": ("outputs.jsonl", token),
    "support": ("outputs.jsonl", support),
    "logprob": ("outputs.jsonl", logprob),
    "rank": ("outputs.jsonl", rank),
    "acceptance count": ("rank0.jsonl", acceptance),
}
"""Kind -> the file that holds it, and how it is changed."""


def edited(file: Path, edit: Edit, rng: random.Random) -> str:
    """Change one random record of a stream; returns the request it touched."""
    lines = file.read_text().splitlines()
    for index in rng.sample(range(1, len(lines) - 1), len(lines) - 2):
        record = json.loads(lines[index])
        if (request := edit(record, rng)) is not None:
            lines[index] = json.dumps(record, separators=(",", ":"))
            file.unlink()
            file.write_text("\n".join(lines) + "\n")
            return request
    raise SystemExit(f"{file} holds nothing to change")


def values_noticed(bundle: Path, kind: str, copies: int, rng: random.Random) -> int:
    """How many of the copies were found to fail, with anomaly and request named."""
    name, edit = VALUES[kind]
    files = sorted(p.relative_to(bundle) for p in bundle.glob(f"runs/*-on/**/{name}"))
    noticed = 0
    for _ in range(copies):
        with tempfile.TemporaryDirectory(dir=bundle.parent) as folder:
            copy = copied(bundle, Path(folder))
            request = edited(copy / rng.choice(files), edit, rng)
            seal(copy)
            code, output = check(copy)
        if code == 1 and request in output and list(_anomalies(output)):
            noticed += 1
        else:
            print(f"UNNOTICED: {kind} of request {request}: exit {code}")
    return noticed


def _anomalies(output: str) -> Iterator[str]:
    for verdict in json.loads(output)["verdicts"]:
        for finding in verdict["findings"]:
            yield finding["anomaly"]


def asked(about: str, copies: int) -> tuple[Path, int, random.Random]:
    """The bundle of the command line, which must pass; how many copies; and what draws.

    Args:
        about: the command's documentation.
        copies: how many by default.
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--copies", type=int, default=copies)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    bundle = arguments.bundle.resolve()
    code, _ = check(bundle)
    if code != 0:
        print(f"expected a bundle that passes, found exit {code}: {bundle}")
        raise SystemExit(2)
    return bundle, arguments.copies, random.Random(arguments.seed)


def main() -> int:
    """Tamper, count, and judge."""
    bundle, copies, rng = asked(__doc__, copies=100)
    noticed, tried = bytes_noticed(bundle, rng)
    print(f"one byte changed, each of {tried} files: {noticed} noticed with exit 3 and the file")
    missed = tried - noticed
    for kind in VALUES:
        found = values_noticed(bundle, kind, copies, rng)
        print(f"one {kind} changed, {copies} copies: {found} noticed with exit 1")
        missed += copies - found
    print(f"{missed} changes went unnoticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
