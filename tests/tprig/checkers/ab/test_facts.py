"""In what arms differ, and what a plan allows them to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from tests.fakes import histories
from tests.tprig.checkers.ab.designs import comparison
from tprig.checkers.ab.facts import differences, facts, unforeseen
from tprig.history import EngineHistory

OFF = histories.engine("a", masks=False)
REPLAY = ["argument:return_sampling_mask", "config:model.return_sampling_mask"]


def other(**changes: object) -> EngineHistory:
    """An engine like `OFF`, but for what it said it does."""
    assert OFF.effective is not None
    return replace(OFF, effective=msgspec.structs.replace(OFF.effective, **changes))


def configured(**settings: str) -> EngineHistory:
    assert OFF.effective is not None
    config: Mapping[str, str] = {**OFF.effective.config, **settings}
    return other(config=config)


def test_replay_shows_in_what_was_asked_and_in_what_is_done() -> None:
    assert list(differences(OFF, histories.engine("b", masks=True))) == REPLAY


def test_what_vllm_draws_for_each_engine_is_no_difference() -> None:
    drawn = configured(**{"parallel.data_parallel_master_port": "4711"})
    assert differences(OFF, drawn) == {}
    assert "config:parallel.data_parallel_master_port" not in facts(drawn)


def test_a_setting_that_only_one_has_is_a_difference() -> None:
    found = differences(OFF, configured(**{"model.new": "1"}))
    assert found == {"config:model.new": ("absent", "1")}


@pytest.mark.parametrize(
    ("globs", "complaints"),
    [(REPLAY, 0), (["*return_sampling_mask"], 0), (["argument:*"], 1), ([], 2), (None, 0)],
)
def test_globs_allow_by_name(globs: list[str] | None, complaints: int) -> None:
    found = unforeseen(comparison(only_differs=globs), OFF, histories.engine("b", masks=True))
    assert len(list(found)) == complaints


def test_files_are_held_against_the_globs_one_by_one() -> None:
    b = other(vllm_digest="2" * 64)
    files = ["vllm/v1/sample/a.py", "vllm/v1/worker/b.py"]
    how = comparison(only_differs=["vllm/v1/sample/*"], changed_files=files)
    (complaint,) = unforeseen(how, OFF, b)
    assert "found vllm/v1/worker/b.py changed" in complaint


def test_files_that_nobody_named_are_the_fact_itself() -> None:
    b = other(vllm_digest="2" * 64)
    (complaint,) = unforeseen(comparison(only_differs=["tree"]), OFF, b)
    assert "found vllm 1111" in complaint


def test_an_engine_that_said_nothing_has_no_facts() -> None:
    assert facts(EngineHistory("silent")) == {}
