"""Every anomaly is shown by a literal history, and by none of its clean neighbours."""

from __future__ import annotations

import pytest

from tests.tprig.checkers.examples import EXAMPLES
from tprig.checkers.anomalies import ANOMALIES, blame, by_blame
from tprig.checkers.verdict import judge_claim
from tprig.evidence import Verdict
from tprig.history import RunHistory

NAMES = list(ANOMALIES)
FAMILIES = {
    *("mask", "oracle", "output", "engine", "gpu", "fault", "cost", "determinism", "gate"),
    *("value", "decision", "graph", "collective", "rank", "record"),
}


def _judge(name: str, *, violating: bool) -> Verdict:
    example = EXAMPLES[name]
    cast = example.violating if violating else example.clean
    runs: dict[str, RunHistory] = {run.id: run for run in cast.values()}
    return judge_claim(example.claim, runs)


def test_the_table_and_the_examples_hold_the_same_names() -> None:
    assert set(EXAMPLES) == set(ANOMALIES)


@pytest.mark.parametrize("name", NAMES)
def test_a_violating_history_shows_its_anomaly_and_no_other(name: str) -> None:
    verdict = _judge(name, violating=True)
    assert verdict.verdict == ANOMALIES[name].verdict
    assert list(verdict.failures) == [name]
    assert verdict.findings[0].anomaly == name
    assert name in verdict.reason


@pytest.mark.parametrize("name", NAMES)
def test_its_clean_neighbour_passes(name: str) -> None:
    verdict = _judge(name, violating=False)
    assert (verdict.verdict, verdict.failures) == ("pass", {})


@pytest.mark.parametrize("name", NAMES)
def test_a_finding_says_what_was_expected_and_found_and_where(name: str) -> None:
    finding = _judge(name, violating=True).findings[0]
    assert finding.message.startswith("expected ")
    assert "found " in finding.message
    assert finding.where.file
    assert finding.where.run is not None
    if anomaly_of_a_row(name):
        assert (finding.where.request, finding.where.line) == ("a", 3)


def anomaly_of_a_row(name: str) -> bool:
    return name.startswith(("mask.", "output."))


@pytest.mark.parametrize("name", NAMES)
def test_definitions_are_sentences(name: str) -> None:
    anomaly = ANOMALIES[name]
    assert anomaly.name == name
    assert anomaly.family in FAMILIES
    assert anomaly.definition[0].isupper()
    assert anomaly.definition.endswith(".")
    assert anomaly.look_at


def test_blame_follows_the_table_and_unknown_names_come_last() -> None:
    assert by_blame(["mine.own", *reversed(NAMES)]) == [*NAMES, "mine.own"]
    assert blame("mask.row-alignment") < blame("mask.membership") < blame("mine.own")
