"""The table of vLLM's private names: right for the installed vLLM, and loud when it is not."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from tprig_inject.seams import SEAMS, SeamMovedError, locate, report, with_overrides

from tests.tprig.inject import toy
from tests.tprig.inject.foreign.client import Foreign
from tprig import evidence


def records(found: list[dict[str, Any]]) -> dict[str, evidence.Seam]:
    seams = [msgspec.convert(record, evidence.Seam) for record in found]
    return {seam.name: seam for seam in seams}


# --- in the installed vLLM ---------------------------------------------------------------------


def test_every_seam_is_where_the_table_says(foreign: Foreign) -> None:
    seams = records(foreign("seams", "reported"))
    assert list(seams) == sorted(SEAMS)
    assert {name: seam.found for name, seam in seams.items() if not seam.ok} == {}
    for name, seam in seams.items():
        assert seam.target == SEAMS[name].target
        assert seam.expected == f"({', '.join(SEAMS[name].parameters)}, ...)"
        assert seam.found.startswith(seam.expected.removesuffix(", ...)"))


def test_every_seam_can_be_wrapped_and_comes_back(foreign: Foreign) -> None:
    restored = foreign("seams", "wrapped_and_restored")
    assert restored == {name: {"wrapped": True, "restored": True} for name in SEAMS}


def test_a_seam_that_moved_in_vllm_is_reported(foreign: Foreign) -> None:
    overrides = {
        "model_runner.sample": {"parameters": ["self", "input_batch"]},
        "sampler.sample": {"attribute": "Sampler.gone"},
        "async_output.get_output": {"module": "vllm.v1.worker.gpu.gone"},
    }
    seams = records(foreign("seams", "reported", overrides=overrides))
    found = {name: seam.found for name, seam in seams.items() if not seam.ok}
    assert found == {
        "model_runner.sample": "(self, hidden_states, input_batch, grammar_output)",
        "sampler.sample": "no Sampler.gone in vllm.v1.worker.gpu.sample.sampler",
        "async_output.get_output": (
            "ModuleNotFoundError: No module named 'vllm.v1.worker.gpu.gone'"
        ),
    }


# --- looking one up ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in toy.TABLE if name != "moved"])
def test_a_seam_that_looks_as_expected_is_ok(name: str) -> None:
    found = locate(toy.TABLE[name])
    assert found.ok
    assert found.owner is not None


def test_parameters_beyond_those_relied_on_may_change() -> None:
    assert locate(toy.seam("function")).ok
    assert locate(toy.seam("function", "first", "second")).ok
    assert not locate(toy.seam("function", "second")).ok
    assert not locate(toy.seam("function", "first", "second", "third")).ok


@pytest.mark.parametrize(
    ("attribute", "found"),
    [
        ("gone", "no gone in tests.tprig.inject.toy"),
        ("Owner.gone", "no Owner.gone in tests.tprig.inject.toy"),
        ("Gone.method", "no Gone.method in tests.tprig.inject.toy"),
        ("Gone.Inner.method", "no Gone.Inner.method in tests.tprig.inject.toy"),
        ("NOT_CALLABLE", "no signature: 3 is not a callable object"),
    ],
)
def test_what_is_not_there_is_said(attribute: str, found: str) -> None:
    looked_up = locate(toy.seam(attribute, "self"))
    assert not looked_up.ok
    assert looked_up.found == found


def test_a_module_that_fails_in_its_own_way_is_no_crash(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module_that_fails.py").write_text("raise AttributeError('no such op')")
    monkeypatch.syspath_prepend(tmp_path)
    found = locate(with_module("module_that_fails"))
    assert (found.ok, found.found) == (False, "AttributeError: no such op")


def with_module(name: str) -> Any:
    overrides = {"sampler.sample": {"module": name}}
    return with_overrides(overrides)["sampler.sample"]


# --- overrides ---------------------------------------------------------------------------------


def test_without_overrides_the_table_is_as_it_is() -> None:
    table = with_overrides({})
    assert table == SEAMS
    assert table is not SEAMS


def test_a_new_shape_replaces_what_it_names_and_nothing_else() -> None:
    table = with_overrides({"model_runner.sample": {"parameters": ["self", "batch"]}})
    before = SEAMS["model_runner.sample"]
    after = table["model_runner.sample"]
    assert after.parameters == ("self", "batch")
    assert (after.module, after.attribute) == (before.module, before.attribute)
    others = {name: seam for name, seam in table.items() if name != "model_runner.sample"}
    assert others == {name: SEAMS[name] for name in others}


def test_a_declared_shape_makes_a_moved_seam_ok() -> None:
    overrides = {"sampler.sample": {
        "module": toy.__name__, "attribute": "Owner.method", "parameters": ["self", "first"],
    }}  # fmt: skip
    assert locate(with_overrides(overrides)["sampler.sample"]).ok


def test_an_unknown_seam_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(SeamMovedError) as caught:
        with_overrides({"model_runner.sampel": {}})
    assert "unknown seam 'model_runner.sampel': expected one of " in str(caught.value)
    assert re.search("model_runner.sample, .*sampler.sample", str(caught.value))


def test_reports_are_records_of_the_schema() -> None:
    seams = records(report(toy.TABLE))
    assert {name for name, seam in seams.items() if not seam.ok} == {"moved"}
    assert seams["moved"] == evidence.Seam(
        name="moved",
        target="tests.tprig.inject.toy:Owner.method",
        expected="(self, another, ...)",
        found="(self, first)",
        ok=False,
    )
