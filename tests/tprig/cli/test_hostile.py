"""Whatever a bundle holds under a redone manifest, every command ends with a verdict."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes import bundles
from tprig.bundle import seal
from tprig.cli import main

VALUES: tuple[object, ...] = (
    *(None, True, -1, 0, 1, 2**31 - 1, 2**63, 10**40, 0.5, 1e308, -1e308),
    *("", "x" * 2000, "nan", "-inf", "\x1b[31m", "\u202e", "|`<b>@a", "../x", [], {}, [[]], [-1]),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundles.pair(tmp_path_factory.mktemp("hostile") / "bundle")


def places(value: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 (any JSON)
    """Yield every (container, key) within a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def mutate(path: Path, rng: random.Random) -> None:
    """Put a random value in a random place of a JSON file, or drop what is there."""
    lines = path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]
    index = rng.randrange(len(lines))
    record = msgspec.json.decode(lines[index])
    container, key = rng.choice(list(places(record)))
    if rng.random() < 0.2:
        del container[key]
    else:
        container[key] = rng.choice(VALUES)
    lines[index] = msgspec.json.encode(record)
    path.write_bytes(b"\n".join(lines) + b"\n")


@pytest.mark.parametrize("seed", range(8))
def test_no_value_in_any_place_brings_a_command_down(
    seed: int, sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(seed)
    root = tmp_path / "bundle"
    for _ in range(15):
        shutil.copytree(sound, root)
        for path in rng.sample(sorted(root.rglob("*.json*")), rng.choice([1, 1, 3])):
            if path.name != "manifest.json":
                mutate(path, rng)
        seal(root)
        codes = [
            main(["check", str(root)]),
            main(["check", str(root), "--json"]),
            main(["report", str(root)]),
        ]
        compared = main(["compare", str(sound), str(root)])
        printed = capsys.readouterr()
        assert printed.err == ""
        assert "\x1b" not in printed.out
        assert len(set(codes)) == 1
        assert codes[0] in {0, 1, 2, 3}
        assert (compared == 3) == (codes[0] == 3)
        shutil.rmtree(root)
