"""What of a shell command matters here: which tests it names, and how many GPUs it is to use. Pure.

It is read, and never run. What cannot be read as a shell would is treated as naming nothing.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_SEPARATORS = {"&&", "||", ";", "|", "&", "(", ")"}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SIZES = ("TP_SIZE", "DP_SIZE", "PP_SIZE")
_PARALLEL = {
    "--tensor-parallel-size": "tp",
    "--tp-size": "tp",
    "-tp": "tp",
    "--pipeline-parallel-size": "pp",
    "--pp-size": "pp",
    "-pp": "pp",
    "--data-parallel-size": "dp",
    "--dp-size": "dp",
    "-dp": "dp",
}
_LAUNCHERS = {"--nproc-per-node", "--nproc_per_node"}
_VALUED = {"-k", "-m", "-n", "-p", "-c", "-o", "-W", "--ignore", "--durations", "--shard-id",
           "--num-shards", "--timeout", "--dist", "--config-list-file", "--tp-size", "--capture",
           "--junitxml", "--maxfail", "--tb", "--log-level", "--rootdir"}  # fmt: skip
_SWALLOWS = re.compile(r"\|\|\s*(true|:|exit\s+0|echo\b)|\bset\s+\+e\b|--reruns\b")
_PIPED = re.compile(r"\b(pytest|torchrun)\b[^|;&]*\|\s*(tee|grep|head|tail)\b")


@dataclass(frozen=True)
class PytestCall:
    """One call of pytest.

    Attributes:
        targets: files, folders and node ids.
        ignored: paths that are left out.
        selects: it has `-k` or `-m`, so not all of its targets' tests need run.
    """

    targets: tuple[str, ...]
    ignored: tuple[str, ...]
    selects: bool


def swallowing(script: str) -> str | None:
    """The words by which a command that failed ends well, or a test is run until it passes.

    Of a pipe the last command's status counts, unless the script sets `pipefail`.
    """
    match = _SWALLOWS.search(script)
    if match is None and "pipefail" not in script:
        match = _PIPED.search(script)
    return None if match is None else match[0]


def commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a script, each as its words."""
    lexer = shlex.shlex(script.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for token in lexer:
            if token in _SEPARATORS:
                yield words
                words = []
            else:
                words.append(token)
    except ValueError:
        return
    yield words


def pytest_call(words: Sequence[str]) -> PytestCall | None:
    """What a command asks of pytest; None when it is another command."""
    index = next((i for i, word in enumerate(words) if word in ("pytest", "py.test")), None)
    if index is None:
        return None
    targets: list[str] = []
    ignored: list[str] = []
    selects = False
    rest = iter(words[index + 1 :])
    for word in rest:
        name, equals, value = word.partition("=")
        if name in ("-k", "-m") or re.match(r"-[km].", word):
            selects = True
        if name == "--ignore":
            ignored.append(value if equals else next(rest, ""))
        elif word in _VALUED:
            next(rest, None)
        elif not word.startswith("-"):
            targets.append(word)
    return PytestCall(tuple(targets), tuple(ignored), selects)


def gpus_wanted(words: Sequence[str]) -> tuple[int, str] | None:
    """The GPUs that a command's own words ask for, and those words; None where it says nothing.

    Sizes of tensor, pipeline and data parallelism multiply.
    """
    options = _options(words)
    # A launcher starts as many ranks as it is told; sizes then say how these are divided.
    found = options if "ranks" in options else {**_assigned(words), **options}
    if not found:
        return None
    return math.prod(size for size, _ in found.values()), " ".join(t for _, t in found.values())


def _assigned(words: Sequence[str]) -> dict[str, tuple[int, str]]:
    found = {}
    for word in words:
        if not _ASSIGNMENT.fullmatch(word):
            break
        name, _, value = word.partition("=")
        if name in _SIZES and value.isdigit():
            found[name[:2].lower()] = (int(value), word)
    return found


def _options(words: Sequence[str]) -> dict[str, tuple[int, str]]:
    found = {}
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        value = value if equals else next(iter(words[index + 1 : index + 2]), "")
        if not value.isdigit():
            continue
        if name in _LAUNCHERS:
            return {"ranks": (int(value), f"{name} {value}")}
        if name in _PARALLEL:
            found[_PARALLEL[name]] = (int(value), f"{name} {value}")
    return found
