"""In what two arms differ, and whether that is all that they were to differ in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

import msgspec

from tprig.evidence import Comparison
from tprig.history import EngineHistory

FILES = "vllm"
"""The fact that the engines had imported other files of vLLM than one another."""
_DRAWN = ("_port", "_ports", ".instance_id")
"""Ends of the names of settings that vLLM draws for each engine."""


def facts(engine: EngineHistory) -> Mapping[str, str]:
    """All that decides what an engine does: what it was asked for, and what it said it does.

    Names: `python`, `tree`, `platform`, `model`, `core_process`, `argument:<name>`,
    `environment:<name>`, `config:<section>.<name>`, `version:<package>`, `devices`, and `vllm`, a
    digest of vLLM's files.
    """
    found: dict[str, str] = {}
    if (arm := engine.arm) is not None:
        found |= {"python": arm.python, "tree": str(arm.tree), "platform": arm.platform}
        found |= {"model": arm.model_digest, "core_process": str(arm.core_process)}
        found |= {f"argument:{name}": _text(raw) for name, raw in arm.engine_args.items()}
        found |= {f"environment:{name}": value for name, value in arm.environment.items()}
    if (effective := engine.effective) is not None:
        found |= {f"config:{name}": value for name, value in effective.config.items()}
        found |= {f"version:{name}": value for name, value in effective.versions.items()}
        found |= {"version:vllm": effective.vllm_version, FILES: effective.vllm_digest}
        found |= {"devices": ", ".join(effective.devices)}
    return {name: value for name, value in found.items() if not name.endswith(_DRAWN)}


def _text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode(errors="replace")


def differences(a: EngineHistory, b: EngineHistory) -> dict[str, tuple[str, str]]:
    """Fact -> what it is in each arm, for those in which they differ."""
    ours, theirs = facts(a), facts(b)
    return {
        name: (ours.get(name, "absent"), theirs.get(name, "absent"))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    }


def unforeseen(comparison: Comparison, a: EngineHistory, b: EngineHistory) -> Iterator[str]:
    """What voids the whole comparison: a difference that the plan does not allow."""
    found = differences(a, b)
    if comparison.identical:
        for name, (ours, theirs) in found.items():
            yield f"expected identical arms, found that {name} is {ours} in a and {theirs} in b"
        return
    if not found and not comparison.planted:
        yield "expected arms that differ, found none in anything that is recorded of them"
    if comparison.only_differs is None:
        return
    for name, (ours, theirs) in found.items():
        # Files are named one by one where the arms' trees were compared.
        names = comparison.changed_files if name == FILES and comparison.changed_files else [name]
        for each in names:
            if not any(fnmatchcase(each, glob) for glob in comparison.only_differs):
                what = f"{ours} in a and {theirs} in b" if each == name else "changed"
                allowed = ", ".join(comparison.only_differs)
                yield f"expected the arms to differ in {allowed} alone, found {each} {what}"
