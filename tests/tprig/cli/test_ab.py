"""`tprig ab`: what it refuses, and what it and `tprig check` make of a bundle that is there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import bundles, histories, measured
from tests.tprig.checkers.ab.designs import comparison
from tprig import evidence
from tprig.bundle import seal
from tprig.cli import main


def write(root: Path, case: measured.Measured) -> Path:
    return bundles.write(root, case.runs.values(), histories.plan([case.claim]))


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """A bundle in which arm b loses a tenth."""
    return write(tmp_path / "lost", measured.measured(slowness=measured.steady(loss=0.1)))


def test_a_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write(tmp_path / "bundle", measured.measured())
    assert main(["ab", "--from", str(root)]) == 0
    printed = capsys.readouterr().out
    assert "ab-c16/cost: replay off against replay on" in printed
    assert "step_p99" in printed
    assert "such pairs resolve a change of" in printed
    assert printed.splitlines()[-1] == f"GO: {root}"
    assert main(["check", str(root)]) == 0


def test_a_no_go(lost: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ab", "--from", str(lost)]) == 1
    printed = capsys.readouterr().out
    assert "cost.regression in ab-c16/cost" in printed
    assert printed.splitlines()[-1].startswith("NO-GO: ")
    assert main(["check", str(lost)]) == 1


def test_inconclusive_says_how_many_pairs_would_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write(tmp_path / "bundle", measured.measured(slowness=measured.steady(deviation=0.05)))
    assert main(["ab", "--from", str(root)]) == 2
    assert "pairs would decide, were the estimate true" in capsys.readouterr().out


def test_void_pairs_are_shown_with_their_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write(tmp_path / "b", measured.measured(comparison(max_foreign_load=0.05)))
    assert main(["ab", "--from", str(root)]) == 2
    printed = capsys.readouterr().out
    assert "0.10 cores of foreign load" in printed
    assert "nothing was compared" in printed


def test_json_holds_every_number(lost: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ab", "--from", str(lost), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    analysis = told["comparisons"]["ab-c16/cost"]["throughput"]
    assert analysis["decision"] == "NO-GO"
    assert len(analysis["gains"]) == 10
    assert analysis["interval"]["high"] < analysis["mean"]["estimate"] / 2


# --- tampered with, and the manifest redone -------------------------------------------------------


def edited_sample(root: Path) -> None:
    def slower(step: dict[str, Any]) -> None:
        step["end_ns"] += 1000

    bundles.edit(root, "runs/ab-c16-p003-a/steps.jsonl", 5, slower)


def removed_pair(root: Path) -> None:
    for arm in "ab":
        shutil.rmtree(root / f"runs/ab-c16-p004-{arm}")
    seal(root)


def swapped_arms(root: Path) -> None:
    def swap(plan: dict[str, Any]) -> None:
        runs = plan["claims"][0]["runs"]
        plan["claims"][0]["runs"] = {
            role[:-1] + ("b" if role[-1] == "a" else "a"): run for role, run in runs.items()
        }

    bundles.edit(root, "plan.json", 0, swap)


def looser_plan(root: Path) -> None:
    def loosen(plan: dict[str, Any]) -> None:
        plan["claims"][0]["comparison"]["margin"] = 0.5

    bundles.edit(root, "plan.json", 0, loosen)


@pytest.mark.parametrize(
    ("tamper", "reason", "code"),
    [
        (edited_sample, "the steps' times were changed", 1),
        (removed_pair, "was never measured, or its run was taken out", 2),
        (swapped_arms, "the plan was changed after this run", 1),
        (looser_plan, "the plan was changed after this run", 1),
    ],
)
def test_what_was_changed_afterwards_is_refused(
    tamper: Callable[[Path], None],
    reason: str,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = write(tmp_path / "bundle", measured.measured())
    tamper(root)
    assert main(["check", str(root), "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    (verdict,) = told["verdicts"]
    assert reason in verdict["reason"]
    assert "cost.regression" not in verdict["failures"]
    assert told["stored_verdicts_differ"]


# --- refused --------------------------------------------------------------------------------------

MODEL = ["--model", "/no/such/model", "--platform", "cpu"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected --model with a checkpoint"),
        (MODEL, "expected something to measure"),
        ([*MODEL, "--aa", "-b", "replay=on"], "expected either --aa or settings of arm b"),
        ([*MODEL, "-b", "replay=off"], "the arms do not differ"),
        ([*MODEL, "-b", "speed=up"], "expected a setting of an arm as one of"),
        ([*MODEL, "--aa", "--pairs", "5"], "expected an even number of pairs"),
        ([*MODEL, "--aa", "--gate", "speed"], "--gate: expected a metric among throughput"),
        ([*MODEL, "--aa", "--margin", "1"], "--margin: expected a fraction"),
        ([*MODEL, "--aa", "--shape", "c3"], "expected a shape among smoke, c16, c64"),
        ([*MODEL, "--plant", "mask-lost"], "expected a slowdown among slow-4, slow-10, stall"),
        ([*MODEL, "--aa"], "expected a checkpoint folder whose config.json tells vocab_size"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "bundle"
    assert main(["ab", *words, "--into", str(into)]) == 4
    assert message in capsys.readouterr().err
    assert not into.exists()


def test_a_plan_says_what_is_measured(tmp_path: Path) -> None:
    case = measured.measured()
    root = write(tmp_path / "bundle", case)
    plan = json.loads((root / "plan.json").read_bytes())
    assert plan["claims"][0]["comparison"]["gates"] == ["throughput"]
    assert plan["version"] == evidence.SCHEMA_VERSION
