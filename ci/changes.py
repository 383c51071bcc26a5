"""What a work tree has changed since a revision, and which suites that calls for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.catalog import Suite
from ci.errors import CiError
from tprig.tree.errors import TreeError
from tprig.tree.git import Git, opened


@dataclass(frozen=True)
class Changes:
    """Changed files.

    Attributes:
        vllm: the tree is vLLM's, else it is this repository.
        since: the merge base they were compared with, as a full commit id.
        paths: from the tree's top, sorted; work that is not committed is among them.
    """

    vllm: bool
    since: str
    paths: tuple[str, ...]


def changed_since(tree: Path, revision: str) -> Changes:
    """What is otherwise in `tree` than where it left `revision`.

    Raises:
        CiError: there is no such tree or revision; a clone too shallow does not pass for
            "nothing has changed".
    """
    try:
        with opened(tree) as git:
            base = _base(git, tree, revision)
            # Renames are shown as both of their names: a file that left calls for its suites too.
            changed = git.words("diff", "-z", "--name-only", "--no-renames", base)
            added = git.words("ls-files", "-z", "--others", "--exclude-standard")
    except TreeError as error:
        raise CiError(
            expected=f"a git work tree at {tree}",
            found=str(error),
            rule="changed files choose the suites",
            remedy="name the top folder of a clone with --tree",
        ) from None
    return Changes((tree / "vllm").is_dir(), base, tuple(sorted({*changed, *added})))


def _base(git: Git, tree: Path, revision: str) -> str:
    commit = git.commit(revision)
    done = git.run("merge-base", commit, "HEAD") if commit else None
    if done is None or done.returncode:
        raise CiError(
            expected=f"a common ancestor of HEAD and {revision} in {tree}",
            found="no such revision" if commit is None else "none: the clone may be shallow",
            rule="what cannot be compared is not taken for unchanged",
            remedy=f"fetch it (git fetch --unshallow origin {revision}), or leave out "
            "--changed-since and run everything",
        )
    return done.stdout.decode().strip()


def triggers(suite: Suite, changes: Changes) -> list[str]:
    """The changed files that call for the suite."""
    prefixes = suite.sources if changes.vllm else suite.own
    return [path for path in changes.paths if matches(path, prefixes)]


def matches(path: str, prefixes: Sequence[str]) -> bool:
    """True when a prefix takes the path in and none with `!` takes it out, as in vLLM's steps."""
    included = [prefix for prefix in prefixes if not prefix.startswith("!")]
    excluded = [prefix[1:] for prefix in prefixes if prefix.startswith("!")]
    return any(map(path.startswith, included)) and not any(map(path.startswith, excluded))
