"""Settings of arms, as people write them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tprig.ab.arms import ArmError, arm, changed_files
from tprig.spec import EngineSpec

BASE = EngineSpec(model=Path("/model"), arguments={"dtype": "float32"})
OVERLAYS = Path("/overlays")


def test_settings_change_the_spec_and_nothing_else() -> None:
    made = arm(BASE, ["replay=on", "env:A=b=c", 'arg:load_format="dummy"'], OVERLAYS)
    assert made.spec.arguments == {
        "dtype": "float32",
        "return_sampling_mask": True,
        "load_format": "dummy",
    }
    assert made.spec.environment == {"A": "b=c"}
    assert made.spec.model == BASE.model
    assert made.words == 'replay=on, env:A=b=c, arg:load_format="dummy"'


def test_no_setting_leaves_it_as_it_is() -> None:
    made = arm(BASE, [], OVERLAYS)
    assert (made.spec, made.words) == (BASE, "as it is")


def test_replay_off_is_what_vllm_does_by_itself() -> None:
    assert arm(BASE, ["replay=on", "replay=off"], OVERLAYS).spec == BASE


def test_an_interpreter_is_taken_by_its_path() -> None:
    assert arm(BASE, [f"python={sys.executable}"], OVERLAYS).spec.python == sys.executable


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replay", "expected a setting of an arm as one of"),
        ("replay=maybe", "expected replay=on or replay=off, found 'replay=maybe'"),
        ("env:=x", "expected a setting of an arm"),
        ("arg:x=fly", "expected JSON behind the equals sign"),
        ("python=/no/such", "expected an executable Python, found no such file"),
        ("tree=/no/such", "tree=: "),
        ("colour=red", "found 'colour=red'"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArmError, match=message):
        arm(BASE, [text], OVERLAYS)


def test_files_are_those_of_either_tree() -> None:
    a, b = arm(BASE, [], OVERLAYS), arm(BASE, [], OVERLAYS)
    assert changed_files(a, b) == []
