"""A whole build without Buildkite: its variables, an agent that records its calls, a lost job."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from ci import app
from ci.attribution import attribute
from ci.events import EVENTS_FILE
from ci.reruns import Reruns, rerun
from tests.ci.toy import environment

DEADLINE_S = 300

AGENT = """#!/usr/bin/env bash
# Keeps what it is given, and gives back what was kept.
set -euo pipefail
shopt -s globstar nullglob
echo "$BUILDKITE_JOB_ID: $*" >> "$STORE/calls"
case "$1 $2" in
  "pipeline upload") cat > "$STORE/pipeline.yml" ;;
  "artifact upload") mkdir -p "$STORE/artifacts"
    for each in $3; do [ -f "$each" ] && cp --parents "$each" "$STORE/artifacts"; done ;;
  "artifact download") here="$PWD"; cd "$STORE/artifacts"
    for each in $4; do [ -f "$each" ] && cp --parents "$each" "$here"; done ;;
  "annotate --style") cat > "$STORE/annotation.md" ;;
  *) exit 9 ;;
esac
exit 0
"""

TESTS = """
import os
import pytest

@pytest.mark.parametrize("n", range(6))
def test_toy(n):
    if n == 1 and os.environ.get("BLOCK"):
        # Tells that it runs, and then waits for ever.
        open(os.environ["BLOCK"], "w").close()
        open(os.environ["BLOCK"] + ".never").read()
    assert n != 2, "the head breaks this"
"""

CATALOGUE = """
[[suite]]
name = "toy"
tests = ["test_toy.py"]
markers = ""
gpus = 0
timeout_min = 10
sources = ["vllm/"]
platform = "cpu"
engines = false
shard_s = 2.0
assumed_s = 1.0
"""


class Build:
    """A build of a toy checkout."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.store.mkdir()
        self.toy = folder / "toy"
        self.toy.mkdir()
        (self.toy / "test_toy.py").write_text(TESTS)
        (self.toy / "pytest.ini").write_text("[pytest]\n")
        (self.toy / "catalog.toml").write_text(CATALOGUE)
        agent = folder / "bin" / "buildkite-agent"
        agent.parent.mkdir()
        agent.write_text(AGENT)
        agent.chmod(0o755)
        self.folder = folder

    def start(
        self, job: str, command: str, attempt: int = 0, **variables: str
    ) -> subprocess.Popen[str]:
        """Begin a job in a checkout of its own, as an agent would."""
        checkout = self.folder / "jobs" / job
        shutil.copytree(self.toy, checkout)
        given = {
            "BUILDKITE": "true",
            "BUILDKITE_BUILD_ID": "build-1",
            "BUILDKITE_JOB_ID": job,
            "BUILDKITE_RETRY_COUNT": str(attempt),
            "STORE": str(self.store),
            "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            **variables,
        }
        return subprocess.Popen(
            ["/bin/bash", "-c", command], cwd=checkout, env=environment(given), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, job: str, command: str, attempt: int = 0, **variables: str) -> tuple[int, str]:
        """Run a job, and upload its artifacts as its agent does when it has ended."""
        process = self.start(job, command, attempt, **variables)
        out, err = process.communicate()
        return process.returncode, out + err

    def step(self, key: str, job: str, attempt: int = 0) -> int:
        """Run an uploaded step."""
        step = next(each for each in self.steps() if each["key"] == key)
        command = " && ".join(each.replace("$$", "$") for each in step["commands"])
        code, _ = self.run(job, command, attempt, **step["env"])
        self.upload(step, job)
        return code

    def step_summary(self, job: str) -> int:
        """Run the uploaded summary step."""
        (step,) = [each for each in self.steps() if each["key"] == "tprig-summary"]
        return self.run(job, step["commands"][0])[0]

    def upload(self, step: dict[str, Any], job: str) -> None:
        """The agent's own upload of `artifact_paths`."""
        checkout = self.folder / "jobs" / job
        for path in step["artifact_paths"]:
            for file in checkout.glob(path.removesuffix("**/*") + "**/*"):
                if file.is_file():
                    kept = self.store / "artifacts" / file.relative_to(checkout)
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, kept)

    def steps(self) -> list[dict[str, Any]]:
        """What was uploaded, without its groups."""
        built = yaml.safe_load((self.store / "pipeline.yml").read_text())
        grouped = [step for each in built["steps"] for step in each.get("steps", [])]
        return [*grouped, *(each for each in built["steps"] if "steps" not in each)]

    def ledger(self, job: str) -> dict[str, Any]:
        """What a summary step wrote."""
        path = self.folder / "jobs" / job / ".tprig/ci/summary/ledger.json"
        document: dict[str, Any] = json.loads(path.read_text())
        return document


@pytest.fixture
def build(tmp_path: Path) -> Build:
    return Build(tmp_path)


def toy(number: int) -> str:
    return f"test_toy.py::test_toy[{number}]"


def hung_up(reader: int) -> bool:
    """Wait until somebody has opened and closed the other end; False if nobody does."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    return bool(poll.poll(DEADLINE_S * 1000))


def kill_in_the_middle(build: Build, key: str, job: str) -> None:
    """SIGKILL a step's runner while a test runs."""
    block = build.folder / "block"
    os.mkfifo(block)
    os.mkfifo(f"{block}.never")
    reader = os.open(block, os.O_RDONLY | os.O_NONBLOCK)
    step = next(each for each in build.steps() if each["key"] == key)
    process = build.start(job, f"exec {step['commands'][0]}", BLOCK=str(block), **step["env"])
    assert hung_up(reader), "the test never began"
    os.close(reader)
    process.send_signal(signal.SIGKILL)
    # The pipes close when pytest, which holds them too, has ended with its runner.
    process.communicate()
    build.upload(step, job)


def test_a_build_from_upload_to_annotation(build: Build) -> None:
    options = "--catalog catalog.toml --python python"
    code, output = build.run("upload", f"python -m ci pipeline {options} --upload")
    assert code == 0, output
    first, second, third, summary = [step["key"] for step in build.steps()]

    assert build.step(first, "job-1") == 0
    kill_in_the_middle(build, second, "job-2")
    assert build.step(third, "job-3") == 1

    assert build.step_summary("summary-1") == 1
    ledger = build.ledger("summary-1")
    assert ledger["not_run"] == [toy(1), toy(4)]
    outcomes = {each["test"]: each["outcomes"] for each in ledger["tests"]}
    assert outcomes == {
        toy(0): ["passed"], toy(3): ["passed"], toy(1): ["did not finish"],
        toy(4): ["not started"], toy(2): ["failed"], toy(5): ["passed"],
    }  # fmt: skip
    assert ledger["counts"] == {
        "planned": 6, "collected": 6, "started": 5, "finished": 4, "passed": 3, "failed": 1,
        "skipped": 0, "attempts": 3,
    }  # fmt: skip
    annotation = (build.store / "annotation.md").read_text()
    assert "## tprig build: **fail**" in annotation
    assert f"- `{toy(4)}` in `{second}`: not started" in annotation
    junit = build.folder / "jobs/summary-1/.tprig/ci/summary/junit.xml"
    suite = ET.parse(junit).getroot()[0]  # noqa: S314 (our own)
    assert {k: suite.get(k) for k in ("tests", "failures", "errors")} == {
        "tests": "6", "failures": "1", "errors": "2",
    }  # fmt: skip

    # The lost job is made again: now everything has run, and the failure still stands.
    assert build.step(second, "job-2b", attempt=1) == 0
    assert build.step_summary("summary-2") == 1
    again = build.ledger("summary-2")
    assert again["not_run"] == []
    assert again["counts"]["attempts"] == 4
    lost = next(each for each in again["tests"] if each["test"] == toy(1))
    assert (lost["outcomes"], lost["standing"]) == (["did not finish", "passed"], "pass")
    calls = (build.store / "calls").read_text()
    assert "upload: pipeline upload" in calls
    assert "summary-1: annotate --style error --context tprig" in calls
    assert summary == "tprig-summary"


def test_base_and_head_run_in_turn_and_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    toy_folder = tmp_path / "toy"
    toy_folder.mkdir()
    (toy_folder / "conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--side')\n"
    )
    (toy_folder / "test_toy.py").write_text(
        "def test_new(pytestconfig): assert pytestconfig.getoption('--side') == 'base'\n"
        "def test_both(): raise RuntimeError('always')\n"
        "def test_other(pytestconfig): raise OSError(pytestconfig.getoption('--side'))\n"
    )
    tests = [f"test_toy.py::{name}" for name in ("test_new", "test_both", "test_other")]
    found = rerun(
        Reruns(
            root=toy_folder,
            tests=tests,
            sides={"base": ["--side=base"], "head": ["--side=head"]},
            arguments=["-p", "no:cacheprovider"],
            pairs=3,
            deadline_s=None,
            output=tmp_path / "runs",
        ),
        gpus=0,
    )
    said = {each.failure.test.partition("::")[2]: each for each in attribute(found)}
    assert {name: each.cause for name, each in said.items()} == {
        "test_new": "new", "test_both": "unknown", "test_other": "new",
    }  # fmt: skip
    assert "run more" in said["test_both"].reason
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert [name.partition("-")[2] for name in folders] == [
        "base", "head", "head", "base", "base", "head",
    ]  # fmt: skip

    sides = {"base": "--base", "head": "--head"}
    words = [w for n in folders for w in (sides[n[4:]], str(tmp_path / "runs" / n))]
    assert all((tmp_path / "runs" / name / EVENTS_FILE).is_file() for name in folders)
    assert app.main(["attribute", *words]) == 1
    assert "new: test_toy.py::test_new: test" in capsys.readouterr().out
