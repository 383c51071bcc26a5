"""vLLM's pipeline files: what is read of them, and what is found wrong in them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import yaml

from ci import lint, needs, plan, shell, testareas
from ci.errors import CiError
from tests.ci.test_pipeline import collected, suite

TEST = """
import pytest, torch
from ..utils import multi_gpu_test

@multi_gpu_test(num_gpus=4)
def test_wide(): ...

@pytest.mark.skipif(torch.accelerator.device_count() < 2, reason="needs 2")
def test_pair(): ...

class TestClass:
    @pytest.mark.distributed(num_gpus=2)
    async def test_marked(self): ...

def test_guarded():
    if cuda_device_count_stateless() <= 2:
        pytest.skip("three")

@pytest.mark.parametrize("n", [pytest.param(1, marks=multi_gpu_test(num_gpus=8))])
def test_narrow(n): ...
"""

SOUND = """
group: A
depends_on: [image-build]
steps:
- label: sound
  key: sound
  timeout_in_minutes: 10
  device: h100
  num_devices: 4
  artifact_paths: ["x/**"]
  source_file_dependencies: [vllm/]
  commands:
  - pytest -v -s distributed/test_a.py
  - VLLM_X=1 torchrun --nproc-per-node=4 distributed/run.py
  retry: {automatic: [{exit_status: -1, signal_reason: none, limit: 1}]}
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tests" / "distributed"
    folder.mkdir(parents=True)
    (folder / "test_a.py").write_text(TEST)
    (tmp_path / "areas").mkdir()
    return tmp_path


def linted(tree: Path, change: dict[str, object] | None = None) -> Counter[str]:
    area = yaml.safe_load(SOUND)
    area["steps"][0].update(change or {})
    area["steps"][0] = {k: v for k, v in area["steps"][0].items() if v is not None}
    (tree / "areas" / "a.yaml").write_text(yaml.safe_dump(area))
    found = lint.lint(tree / "areas")
    assert (found.files, found.steps) == (1, 1)
    return Counter(each.rule for each in found.findings)


def test_a_sound_step_has_no_findings(tree: Path) -> None:
    assert linted(tree) == {}


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        ({"num_devices": 2}, {"gpus.launcher": 1, "gpus.tests-nowhere": 2}),
        ({"num_devices": None, "device": "mi300_4"}, {}),
        ({"num_devices": None, "num_gpus": 4}, {}),
        ({"commands": ["pytest distributed/test_a.py::test_pair"], "num_devices": 2}, {}),
        ({"commands": ["cd distributed && pytest test_a.py"], "num_devices": 3},
         {"gpus.tests-nowhere": 1}),
        ({"commands": ["pytest distributed --ignore=distributed/test_a.py"], "num_devices": 1}, {}),
        ({"commands": ["vllm serve m -tp 4 -dp=2"]}, {"gpus.launcher": 1}),
        ({"commands": ["TP_SIZE=2 DP_SIZE=4 python x.py"]}, {"gpus.launcher": 1}),
        ({"commands": ["TP_SIZE=2 DP_SIZE=2 torchrun --nproc-per-node=4 x.py"]}, {}),
        ({"timeout_in_minutes": None}, {"timeout.none": 1}),
        ({"artifact_paths": None}, {"artifacts.none": 1}),
        ({"artifact_paths": None, "commands": ["buildkite-agent artifact upload x"]}, {}),
        ({"soft_fail": True}, {"failures.swallowed": 1}),
        ({"commands": ["pytest distributed/test_b.py || true"]}, {"failures.swallowed": 1}),
        ({"commands": ["torchrun x.py | grep passed"]}, {"failures.swallowed": 1}),
        ({"commands": ["set -o pipefail; pytest x.py | tee log"]}, {}),
        ({"commands": ["pip freeze | grep torch"]}, {}),
        ({"commands": ["set -o pipefail; pytest x.py || true"]}, {"failures.swallowed": 1}),
        ({"retry": {"automatic": True}}, {"retry.swallows": 1}),
        ({"retry": {"automatic": [{"exit_status": 1}]}}, {"retry.swallows": 1}),
        ({"retry": {"automatic": {"exit_status": -1, "limit": 2}}}, {"retry.swallows": 1}),
        ({"retry": {"automatic": [{"signal_reason": "agent_stop"}]}}, {}),
    ],
)  # fmt: skip
def test_each_rule_finds_what_it_is_for_and_nothing_else(
    tree: Path, change: dict[str, object], rules: dict[str, int]
) -> None:
    assert linted(tree, change) == rules


def test_a_test_that_another_step_runs_with_its_gpus_is_the_lesser_finding(tree: Path) -> None:
    area = yaml.safe_load(SOUND)
    narrow = {**area["steps"][0], "key": "narrow", "num_devices": 2, "commands": ["pytest ."]}
    chosen = {**narrow, "key": "chosen", "commands": ["pytest -k 'not wide' ."]}
    area["steps"] += [narrow, chosen]
    (tree / "areas" / "a.yml").write_text(yaml.safe_dump(area))
    found = {(each.step, each.rule) for each in lint.lint(tree / "areas").findings}
    assert found == {("narrow", "gpus.tests"), ("chosen", "gpus.tests-possible")}


def test_a_mirror_is_held_against_its_own_device(tree: Path) -> None:
    mirror = {"amd": {"device": "mi300_2", "commands": ["torchrun --nproc_per_node 4 x.py"]}}
    assert linted(tree, {"mirror": mirror}) == {"gpus.launcher": 1}
    mirror["amd"]["device"] = "mi300_4"
    assert linted(tree, {"mirror": mirror}) == {}


def test_needs_are_read_from_syntax() -> None:
    assert [(need.test, need.gpus) for need in needs.needs(TEST)] == [
        ("test_wide", 4), ("test_pair", 2), ("TestClass::test_marked", 2), ("test_guarded", 3),
    ]  # fmt: skip
    assert needs.needs("pytestmark = multi_gpu_test(num_gpus=2)")[0].test == needs.MODULE
    assert needs.needs("def broken(") == []
    assert needs.needs("@multi_gpu_test(num_gpus=N)\ndef test_a(): ...") == []


def test_a_shell_line_is_read_as_a_shell_would() -> None:
    (words,) = shell.commands("A=1 pytest -v -s 'a b.py' -k \"x and y\" --ignore c.py d/e.py::t[1]")
    call = shell.pytest_call(words)
    assert call == shell.PytestCall(("a b.py", "d/e.py::t[1]"), ("c.py",), selects=True)
    assert [each[:1] for each in shell.commands("cd x && pytest a | tee b; echo")] == [
        ["cd"], ["pytest"], ["tee"], ["echo"],
    ]  # fmt: skip
    assert list(shell.commands("pytest 'unclosed")) == []


@pytest.mark.parametrize("text", ["[]", "group: A", "group: A\nsteps: [{label: a, colour: red}]"])
def test_a_file_that_is_not_known_in_full_is_refused(tree: Path, text: str) -> None:
    (tree / "areas" / "a.yaml").write_text(text)
    with pytest.raises(CiError, match="a group of steps"):
        lint.lint(tree / "areas")


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CiError, match="nothing to read is not nothing wrong"):
        lint.lint(tmp_path)


def test_what_is_emitted_for_vllm_is_read_back_and_is_sound(tree: Path) -> None:
    mine = suite(sources=("vllm/v1/", "!vllm/v1/x/"))
    made = plan.make([mine], {"a": collected(1, 2)}, {})
    text = testareas.emit(made, {"a": mine})
    (tree / "areas" / "tprig.yaml").write_text(text)
    area = testareas.read(tree / "areas" / "tprig.yaml")
    assert [(step.num_devices, step.timeout_in_minutes) for step in area.steps] == [
        (1, 30), (2, 30),
    ]  # fmt: skip
    assert area.steps[0].source_file_dependencies == list(mine.sources)
    assert lint.lint(tree / "areas").findings == ()


def test_a_plan_without_gpus_has_nothing_for_vllm() -> None:
    mine = suite(platform="cpu")
    with pytest.raises(CiError, match="at least one suite with GPUs"):
        testareas.emit(plan.make([mine], {"a": collected(1)}, {}), {"a": mine})


def test_every_file_of_a_vllm_tree_is_read() -> None:
    """Takes vLLM's folder from TPRIG_VLLM_TEST_AREAS; elsewhere there is none to read."""
    folder = os.environ.get("TPRIG_VLLM_TEST_AREAS")
    if folder is None:
        pytest.skip("TPRIG_VLLM_TEST_AREAS names no .buildkite/test_areas of a vLLM tree")
    found = lint.lint(Path(folder))
    assert found.files == len(list(Path(folder).glob("*.yaml")))
    assert found.steps > found.files
