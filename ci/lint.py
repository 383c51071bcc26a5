"""Finds steps of vLLM's pipeline that cannot run, or cannot show, what they are for."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ci import shell
from ci.errors import CiError
from ci.needs import MODULE, Need, needs
from ci.testareas import Step, read

WORKSPACE = "/vllm-workspace"
"""Where a step's image has the tree."""

Rule = Literal[
    "gpus.launcher",
    "gpus.tests-nowhere",
    "gpus.tests",
    "gpus.tests-possible",
    "artifacts.none",
    "timeout.none",
    "failures.swallowed",
    "retry.swallows",
]
RULES: Mapping[Rule, str] = {
    "gpus.launcher": "a command launches more ranks than the step has GPUs",
    "gpus.tests-nowhere": "no step here that names the test has the GPUs it needs: it never runs",
    "gpus.tests": "a test needs more GPUs than this step has, and skips itself; another has them",
    "gpus.tests-possible": "as gpus.tests, where -k or -m may leave the test out",
    "artifacts.none": "nothing is kept of a failure but the log",
    "timeout.none": "a hang holds the agent until the cluster's own limit",
    "failures.swallowed": "a command that fails ends well, or the step may fail unnoticed",
    "retry.swallows": "a retry rule takes in failures of tests, or time-outs",
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with one step."""

    rule: Rule
    file: str
    step: str
    message: str


@dataclass(frozen=True)
class Linted:
    """What was read, and what was found in it."""

    files: int
    steps: int
    findings: tuple[Finding, ...]


def lint(folder: Path, tree: Path | None = None) -> Linted:
    """Read every file of a folder such as `.buildkite/test_areas`.

    Args:
        folder: the files.
        tree: the vLLM tree whose tests the steps run; found above the folder by default.

    Raises:
        CiError: there is no file, or one that cannot be read.
    """
    paths = sorted(folder.glob("*.yaml")) + sorted(folder.glob("*.yml"))
    if not paths:
        raise CiError(
            expected=f"YAML files of steps in {folder}",
            found="none",
            rule="nothing to read is not nothing wrong",
            remedy="name a folder such as .buildkite/test_areas of a vLLM tree",
        )
    tests = Tests(tree or _tree_of(folder))
    areas = {path.name: read(path) for path in paths}
    steps = [(name, step) for name, area in areas.items() for step in area.steps]
    jobs = [job for name, step in steps for job in _jobs(name, step)]
    found = [
        *(each for name, step in steps for each in _settings(name, step)),
        *(each for job in jobs for each in _commands(job)),
        *_tests(jobs, tests),
    ]
    return Linted(len(areas), sum(len(area.steps) for area in areas.values()), tuple(found))


def _tree_of(folder: Path) -> Path | None:
    above = [parent for parent in folder.absolute().parents if (parent / "tests").is_dir()]
    return above[0] if above else None


class Tests:
    """What the tests of a tree say that they need."""

    __test__ = False

    def __init__(self, tree: Path | None) -> None:
        self._tree = tree
        self._known: dict[Path, list[Need]] = {}

    def of(self, call: shell.PytestCall, working_dir: str) -> Iterator[tuple[str, Need]]:
        """Each need of a test that the call names, with its file from the tree's top."""
        if self._tree is None:
            return
        ignored = [self._path(working_dir, path) for path in call.ignored]
        for target in call.targets:
            name, _, test = target.partition("::")
            for file in self._files(self._path(working_dir, name)):
                if not any(file.is_relative_to(path) for path in ignored if path):
                    yield from self._of_file(file, test.partition("[")[0])

    def _path(self, working_dir: str, name: str) -> Path | None:
        """The tree's path of one that a step names from its working directory."""
        inside = posixpath.normpath(posixpath.join(working_dir, name))
        relative = posixpath.relpath(inside, WORKSPACE)
        if self._tree is None or relative.startswith(".."):
            return None
        return self._tree / relative

    def _files(self, path: Path | None) -> list[Path]:
        if path is None:
            return []
        return [path] if path.is_file() else sorted(path.rglob("test_*.py"))

    def _of_file(self, file: Path, test: str) -> Iterator[tuple[str, Need]]:
        assert self._tree is not None
        if file not in self._known:
            self._known[file] = needs(file.read_text("utf-8", errors="replace"))
        for need in self._known[file]:
            if not test or need.test in (MODULE, test) or need.test.startswith(f"{test}::"):
                yield str(file.relative_to(self._tree)), need


# --- steps --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """A step as one kind of agent runs it."""

    file: str
    name: str
    script: Sequence[str]
    working_dir: str
    gpus: int


def _jobs(file: str, step: Step) -> Iterator[_Job]:
    script = step.commands or ([step.command] if step.command else [])
    name, folder = step.key or step.label, step.working_dir or f"{WORKSPACE}/tests"
    yield _Job(file, name, script, folder, gpus_of(step.device, step.num_devices, step.num_gpus))
    for mirror, other in step.mirror.items():
        device = str(other.get("device", step.device or ""))
        count = other.get("num_devices", None)
        # A device of AMD's names its own count; without one, the step's own holds.
        own = int(str(count)) if count is not None else None
        gpus = gpus_of(device, own if own or _suffix(device) else step.num_devices)
        commands = other.get("commands")
        own_script = [str(line) for line in commands] if isinstance(commands, list) else script
        working_dir = str(other.get("working_dir", folder))
        yield _Job(file, f"{name} ({mirror})", own_script, working_dir, gpus)


def gpus_of(device: str | None, *counts: int | None) -> int:
    """GPUs of a step on one host: as counted, else as its device's name says, else one."""
    stated = [count for count in counts if count is not None]
    if device is not None and device.startswith("cpu"):
        return 0
    return max(stated) if stated else _suffix(device or "") or 1


def _suffix(device: str) -> int | None:
    match = re.search(r"_(\d)$", device)
    return int(match[1]) if match else None


def _settings(file: str, step: Step) -> Iterator[Finding]:
    name = step.key or step.label
    script = "\n".join(step.commands or [step.command or ""])
    if step.artifact_paths is None and "artifact upload" not in script:
        yield Finding("artifacts.none", file, name, "no artifact_paths, and no upload")
    if step.timeout_in_minutes is None:
        yield Finding("timeout.none", file, name, "no timeout_in_minutes")
    if step.soft_fail is True:
        yield Finding("failures.swallowed", file, name, "soft_fail: true takes in every failure")
    if (rule := swallowing(step.retry)) is not None:
        yield Finding("retry.swallows", file, name, rule)


def swallowing(retry: Mapping[str, object]) -> str | None:
    """The first automatic rule that tests' failures or time-outs can meet; None when none can."""
    rules = retry.get("automatic")
    if rules is True:
        return "automatic: true retries every failure"
    for rule in rules if isinstance(rules, list) else [rules] if rules else []:
        if not isinstance(rule, Mapping):
            continue
        status, reason = rule.get("exit_status", "*"), rule.get("signal_reason", "*")
        by_agent = reason in ("agent_stop", "agent_refused")
        lost = status in (-1, "-1") and reason == "none"
        if not (by_agent or lost):
            return f"exit_status {status}, signal_reason {reason}"
    return None


def _commands(job: _Job) -> Iterator[Finding]:
    for script in job.script:
        if (words := shell.swallowing(script)) is not None:
            message = f"{words!r} in: {_short(script)}"
            yield Finding("failures.swallowed", job.file, job.name, message)
        for command in shell.commands(script):
            yield from _launcher(job, command)


def _launcher(job: _Job, words: Sequence[str]) -> Iterator[Finding]:
    wanted = shell.gpus_wanted(words)
    if wanted is not None and wanted[0] > max(job.gpus, 1):
        message = f"{wanted[1]} wants {wanted[0]} GPUs, the step has {job.gpus}"
        yield Finding("gpus.launcher", job.file, job.name, message)


@dataclass(frozen=True)
class _Named:
    """A test that says what it needs, named by a job's pytest."""

    job: _Job
    file: str
    need: Need
    selects: bool


def _tests(jobs: Sequence[_Job], tests: Tests) -> Iterator[Finding]:
    named = [each for job in jobs for each in _named(job, tests)]
    most: dict[tuple[str, str], int] = {}
    for each in named:
        key = (each.file, each.need.test)
        most[key] = max(most.get(key, 0), each.job.gpus)
    for each in named:
        if each.need.gpus <= each.job.gpus:
            continue
        rule: Rule = "gpus.tests-possible" if each.selects else "gpus.tests"
        if most[each.file, each.need.test] < each.need.gpus:
            rule = "gpus.tests-nowhere"
        test = each.need.test or "the whole file"
        message = (
            f"{each.file}:{each.need.line} ({test}) needs {each.need.gpus} ({each.need.text}), "
            f"the step has {each.job.gpus}"
        )
        yield Finding(rule, each.job.file, each.job.name, message)


def _named(job: _Job, tests: Tests) -> Iterator[_Named]:
    """Each test once for a job; where it says several counts, the largest."""
    widest: dict[tuple[str, str], _Named] = {}
    for call, folder in _calls(job):
        for file, need in tests.of(call, folder):
            known = widest.get((file, need.test))
            if known is None or known.need.gpus < need.gpus:
                widest[file, need.test] = _Named(job, file, need, call.selects)
    yield from widest.values()


def _calls(job: _Job) -> Iterator[tuple[shell.PytestCall, str]]:
    folder = job.working_dir
    for script in job.script:
        for words in shell.commands(script):
            if words[:1] == ["cd"] and len(words) > 1:
                folder = posixpath.join(folder, words[1])
            if (call := shell.pytest_call(words)) is not None:
                yield call, folder


def _short(script: str) -> str:
    line = " ".join(script.split())
    return line if len(line) <= 160 else f"{line[:159]}…"


def report(found: Linted) -> str:
    """Return what was found, by rule, each with what the rule means."""
    lines = [f"{found.steps} steps in {found.files} files: {len(found.findings)} findings"]
    for rule, meaning in RULES.items():
        mine = [each for each in found.findings if each.rule == rule]
        if mine:
            steps = len({(each.file, each.step) for each in mine})
            lines += ["", f"{rule}: {len(mine)} in {steps} steps: {meaning}"]
            lines += [f"  {each.file}: {each.step}: {each.message}" for each in mine]
    return "\n".join(lines)
