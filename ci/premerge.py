"""What must hold of a vLLM work tree before a change is proposed: a standing for each check."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci import events
from ci.changes import Changes, changed_since
from ci.codes import PYTEST_UNKNOWN, Standing
from ci.events import Outcome
from ci.step import Attempt
from tprig.tree.git import Git, opened

DEADLINE_S = 3600.0
TAIL_CHARS = 3000
NAMESPACE = "premerge"
_OUTCOMES: Mapping[Standing, Outcome] = {"pass": "passed", "fail": "failed", "unknown": "error"}


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: such as `sign-off`.
        standing: `unknown` where it could not be made.
        detail: what is wrong, or why it could not be made; empty where nothing is.
    """

    name: str
    standing: Standing
    detail: str = ""


@dataclass(frozen=True)
class Request:
    """What is to be checked.

    Attributes:
        tree: the vLLM work tree.
        base: the revision that the change is to be merged into.
        root: the checkout of this repository.
        python: interpreter of the vLLM under test.
        platform: of the engines.
        gpus: how many devices there are; TP2 needs two, and none on the CPU.
        upstream: tests of the tree to run, from its top.
        engines: False leaves out TP1 and TP2.
    """

    tree: Path
    base: str
    root: Path
    python: str = sys.executable
    platform: str = "cpu"
    gpus: int = 0
    upstream: tuple[str, ...] = ()
    engines: bool = True


def premerge(request: Request, folder: Path) -> list[Check]:
    """Make every check, whatever became of the others, and record each as it is made.

    Args:
        request: what is checked.
        folder: gets the stream of events, as of a step's attempt, and the bundles.

    Raises:
        CiError: there is no such tree or base.
    """
    changes = changed_since(request.tree, request.base)
    attempt = Attempt(folder)
    folder.mkdir(parents=True)
    checks = dict(_checks(request, changes, attempt))
    names = [f"{NAMESPACE}::{name}" for name in checks]
    begun = events.Begun(step=NAMESPACE, attempt=0, job="local")
    events.append(attempt.events, begun)
    events.append(attempt.events, events.CollectedTests(tests=names))
    made = [_recorded(attempt, name, check) for name, check in checks.items()]
    worst = 1 if any(check.standing != "pass" for check in made) else 0
    events.append(attempt.events, events.Ended(status=worst))
    return made


def _recorded(attempt: Attempt, name: str, check: Callable[[], Check]) -> Check:
    test = f"{NAMESPACE}::{name}"
    events.append(attempt.events, events.Started(test=test))
    start = time.monotonic()
    made = check()
    finished = events.Finished(
        test=test,
        outcome=_OUTCOMES[made.standing],
        seconds=time.monotonic() - start,
        detail=made.detail[-events.DETAIL_CHARS :],
    )
    events.append(attempt.events, finished)
    return made


def _checks(
    request: Request, changes: Changes, attempt: Attempt
) -> Iterator[tuple[str, Callable[[], Check]]]:
    tree = request.tree
    yield "compileall", lambda: _compileall(request)
    yield "diff-check", lambda: _diff_check(tree, changes.since)
    yield "sign-off", lambda: _sign_off(tree, changes.since)
    yield "pre-commit", lambda: _pre_commit(tree, changes.paths)
    if request.upstream:
        yield "upstream-tests", lambda: _upstream(request)
    if request.engines:
        yield "tp1", lambda: _engines(request, "tp1", attempt)
        if request.platform == "cpu" or request.gpus >= 2:
            yield "tp2", lambda: _engines(request, "tp1 or tp2", attempt)


def _run(
    name: str, words: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
) -> Check:
    """A command that exits 0 where all is well."""
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env={**os.environ, **(variables or {})},
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        return Check(name, "unknown", f"{words[0]} did not end within {DEADLINE_S:.0f} s")
    except OSError as error:
        return Check(name, "unknown", f"{words[0]}: {error}")
    text = (done.stdout + done.stderr).strip()[-TAIL_CHARS:]
    if done.returncode == 0:
        return Check(name, "pass")
    return Check(name, "unknown" if done.returncode == PYTEST_UNKNOWN else "fail", text)


def _compileall(request: Request) -> Check:
    """Every Python file of the package parses, by the interpreter that will run it."""
    with tempfile.TemporaryDirectory(prefix="tprig-pyc-") as scratch:
        words = [request.python, "-m", "compileall", "-q", "-f", "vllm"]
        # Compiled files stay out of the tree.
        return _run("compileall", words, request.tree, {"PYTHONPYCACHEPREFIX": scratch})


def _diff_check(tree: Path, base: str) -> Check:
    """No conflict markers and no stray white space, in commits or in what is not committed."""
    return _run("diff-check", ["git", "--no-optional-locks", "diff", "--check", base], tree)


def _sign_off(tree: Path, base: str) -> Check:
    """Every commit of the change carries a Signed-off-by trailer."""
    with opened(tree) as git:
        bare = [commit for commit in _commits(git, base) if not _signed(git, commit)]
        total = len(_commits(git, base))
    if not total:
        return Check("sign-off", "unknown", f"no commit since {base[:12]}: nothing to sign off")
    if not bare:
        return Check("sign-off", "pass")
    names = ", ".join(commit[:12] for commit in bare)
    remedy = f"git rebase --signoff {base[:12]}"
    return Check("sign-off", "fail", f"without a Signed-off-by trailer: {names}; {remedy}")


def _commits(git: Git, base: str) -> list[str]:
    return git.line("rev-list", "--no-merges", f"{base}..HEAD").split()


def _signed(git: Git, commit: str) -> bool:
    form = "--format=%(trailers:key=Signed-off-by,valueonly)"
    return "@" in git.line("log", "-1", form, commit)


def _pre_commit(tree: Path, paths: Sequence[str]) -> Check:
    """The tree's own hooks, on what was changed."""
    if not (tree / ".pre-commit-config.yaml").exists():
        return Check("pre-commit", "pass", "the tree has no hooks")
    files = [path for path in paths if (tree / path).is_file()]
    if not files:
        return Check("pre-commit", "pass", "no changed file is left")
    command = shutil.which("pre-commit")
    if command is None:
        return Check("pre-commit", "unknown", "no pre-commit here: pip install pre-commit")
    return _run("pre-commit", [command, "run", "--files", *files], tree)


def _upstream(request: Request) -> Check:
    words = [request.python, "-m", "pytest", "-q", *request.upstream]
    return _run("upstream-tests", words, request.tree)


def _engines(request: Request, markers: str, attempt: Attempt) -> Check:
    """The suites of this repository, on the tree as it lies; the bundle holds the evidence."""
    name = "tp2" if "tp2" in markers else "tp1"
    words = [
        *(sys.executable, "-m", "pytest", "-q", "-m", markers),
        f"--tprig-vllm-tree={request.tree}",
        f"--tprig-vllm-python={request.python}",
        f"--tprig-platform={request.platform}",
        f"--tprig-bundle-dir={attempt.folder / name}",
    ]
    return _run(name, words, request.root)


def report(made: Sequence[Check]) -> str:
    """Return a line for each check, and below it what is wrong."""
    lines = []
    for check in made:
        lines.append(f"{check.standing:<8} {check.name}")
        lines += [f"         {line}" for line in check.detail.splitlines()[-12:]]
    return "\n".join(lines)


def worst(made: Sequence[Check]) -> Standing:
    """The worst of them; `unknown` where there is none."""
    names = {check.standing for check in made}
    if "fail" in names:
        return "fail"
    return "pass" if names == {"pass"} else "unknown"
