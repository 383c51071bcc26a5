"""Which failures a change caused: by counts, anomaly and signature."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.attribution import FAILURE, OTHER, confusion, falsely_pre_existing
from ci import attribution
from ci.attribution import Class, Observation, Side, attribute, fisher, pairs_order, signature
from ci.errors import CiError
from ci.observed import observe
from tests.fakes import bundles


def runs(side: Side, failed: int, passed: int) -> list[Observation]:
    shown = Observation(side, FAILURE.test, tried=True, failures=frozenset({FAILURE}))
    return [*[shown] * failed, *[Observation(side, FAILURE.test, tried=True)] * passed]


@pytest.mark.parametrize(
    ("base", "head", "cause"),
    [
        ((0, 3), (3, 0), "new"),
        ((0, 2), (2, 0), "unknown"),
        ((0, 0), (5, 0), "unknown"),
        ((5, 0), (5, 0), "pre-existing"),
        ((4, 0), (5, 0), "unknown"),
        ((9, 0), (1, 0), "pre-existing"),
        ((1, 4), (1, 4), "flaky"),
        ((4, 1), (5, 0), "flaky"),
        ((1, 7), (8, 0), "unknown"),
        ((5, 0), (1, 4), "flaky"),
    ],
)
def test_counts_decide(base: tuple[int, int], head: tuple[int, int], cause: Class) -> None:
    (said,) = attribute([*runs("base", *base), *runs("head", *head)])
    assert said.cause == cause
    assert (said.base_failed, said.base_runs) == (base[0], sum(base))
    assert (said.head_failed, said.head_runs) == (head[0], sum(head))


def test_another_failure_of_the_same_test_at_base_is_no_excuse() -> None:
    other = Observation("base", FAILURE.test, tried=True, failures=frozenset({OTHER}))
    (said,) = attribute([*[other] * 8, *runs("head", 8, 0)])
    assert (said.cause, said.base_failed, said.base_runs) == ("new", 0, 8)


def test_what_failed_for_want_of_devices_counts_for_neither_side() -> None:
    bare = Observation("head", FAILURE.test, tried=False, environment=True)
    (said,) = attribute([*runs("base", 0, 3), bare, bare])
    assert (said.cause, said.head_failed) == ("environment", 2)


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9), st.integers(1, 9))
def test_fisher_is_what_scipy_says(base: int, base_more: int, head: int, head_more: int) -> None:
    p = fisher(base, base + base_more, head, head + head_more)
    table = np.array([[head, head_more], [base, base_more]])
    assert p == pytest.approx(stats.fisher_exact(table, alternative="greater")[1], abs=1e-12)


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12), st.integers(0, 12))
def test_nothing_is_pre_existing_that_base_did_not_always_show(
    base: int, base_passed: int, head: int, head_passed: int
) -> None:
    for said in attribute([*runs("base", base, base_passed), *runs("head", head, head_passed)]):
        if said.cause == "pre-existing":
            assert base > 0
            assert base_passed == head_passed == 0
        if said.cause == "new":
            assert base == 0
            assert base_passed > 0


def test_no_history_of_200_is_called_pre_existing_falsely() -> None:
    counts = confusion(200, 8)
    assert sum(counts.values()) == 200
    assert falsely_pre_existing(counts) == 0
    assert counts["pre-existing", "pre-existing"] == counts["new", "new"] == 29
    assert counts["new-behind-another", "new"] == 29
    assert counts["flaky", "new"] == 0


def test_sides_are_interleaved_and_balanced() -> None:
    assert pairs_order(3) == ["base", "head", "head", "base", "base", "head"]


def test_a_signature_keeps_what_is_wrong_and_not_where() -> None:
    trace = "def test_a():\n>   f(3)\nE   ValueError: rank 3 at 0x7f12 of /tmp/a/b.py\n\n/x/y.py:31"
    assert signature(trace) == "ValueError: rank # at # of b.py"
    assert signature("3.5 of 7e-3 s") == signature("9 of 1 s")
    assert signature("") == "no message"


def test_a_bundle_tells_its_failures_by_anomaly(tmp_path: Path) -> None:
    root = bundles.pair(tmp_path / "sound")
    assert {each.tried for each in observe("base", root)} == {True}
    assert not any(each.failures for each in observe("base", root))
    broken = bundles.pair(tmp_path / "broken")
    line, _ = next(bundles.emissions(broken, "on"))
    bundles.edit(broken, "runs/on/outputs.jsonl", line, _take_token_out)
    found = [failure for each in observe("head", broken) for failure in each.failures]
    assert {failure.anomaly for failure in found} >= {"mask.membership"}
    assert all("#" in f.signature or not any(map(str.isdigit, f.signature)) for f in found)


def _take_token_out(record: dict[str, list[list[int]]]) -> None:
    emitted = record["rows"][0]["token_id"]  # type: ignore[call-overload]
    record["supports"][0].remove(emitted)


@pytest.mark.parametrize("name", ["", "nothing", "empty"])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CiError, match="a bundle or a step's attempt"):
        observe("base", tmp_path / name)


def test_a_damaged_bundle_tells_nothing(tmp_path: Path) -> None:
    root = bundles.pair(tmp_path / "damaged")
    with (root / "runs/on/outputs.jsonl").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(CiError, match="its evidence is damaged"):
        observe("base", root)


def test_the_report_gives_counts_probability_and_reason() -> None:
    said = attribute([*runs("base", 0, 4), *runs("head", 4, 0)])
    text = attribution.report(said)
    assert "new: suites/test_a.py::test_a: mask.membership" in text
    assert "base 0 of 4, head 4 of 4, Fisher p = 0.0143" in text
    assert attribution.exit_code(said) == 1
    assert attribution.exit_code([]) == 0
