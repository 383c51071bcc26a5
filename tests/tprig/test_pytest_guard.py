"""An option's path behind a space leads pytest away from the checkout: the user is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tprig.pytest_guard import misread, pytest_load_initial_conftests

CHECKOUT = Path(__file__).parents[2]


def test_the_remedy_is_named(tmp_path: Path) -> None:
    config = cast("pytest.Config", SimpleNamespace(rootpath=tmp_path))
    arguments = ["-m", "tp1", "--tprig-model", str(tmp_path)]
    with pytest.raises(pytest.UsageError, match=f"write --tprig-model={tmp_path} with an equals"):
        pytest_load_initial_conftests(config, arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tprig-model=/usr"],
        ["--tprig-profile", "smoke"],
        ["-m", "tp1"],
        ["--other", "/usr"],
    ],
)
def test_what_pytest_reads_as_it_is_meant_is_left_alone(arguments: list[str]) -> None:
    assert misread(arguments, Path("/")) is None


def test_within_the_checkout_nothing_was_misread() -> None:
    assert misread(["--tprig-model", "/usr"], CHECKOUT) is None
