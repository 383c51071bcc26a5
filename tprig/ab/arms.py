"""What makes an arm: settings as a person writes them, applied to an engine's spec."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from tprig import tree
from tprig.spec import EngineSpec

FORMS = "replay=on|off, python=PATH, tree=PATH[@REV], env:NAME=VALUE, arg:NAME=JSON"


class ArmError(Exception):
    """A setting of an arm cannot be meant."""


@dataclasses.dataclass(frozen=True)
class ArmSpec:
    """One arm: its engine, and what a person calls it."""

    spec: EngineSpec
    words: str
    changed: frozenset[str] = frozenset()
    """Files of vLLM that its tree has otherwise than the installed one's base."""


def arm(base: EngineSpec, settings: Sequence[str], overlays: Path) -> ArmSpec:
    """The arm that these settings make of a spec.

    Args:
        base: what both arms share.
        settings: in the forms of `FORMS`; a later one overrides an earlier one.
        overlays: folder for trees that are laid over an interpreter's vLLM.

    Raises:
        ArmError: for a setting in no such form, or one that names nothing.
    """
    found = ArmSpec(base, ", ".join(settings) or "as it is")
    # Trees last: they are laid over the interpreter that the others may name.
    for text in sorted(settings, key=lambda setting: setting.startswith("tree=")):
        found = _applied(found, text, overlays)
    return found


def changed_files(a: ArmSpec, b: ArmSpec) -> list[str]:
    """Files of vLLM that only one of the arms' trees has changed, or that both have."""
    if a.spec.overlay == b.spec.overlay:
        return []
    return sorted(a.changed | b.changed)


def _applied(to: ArmSpec, text: str, overlays: Path) -> ArmSpec:
    name, equals, value = text.partition("=")
    kind, colon, what = name.partition(":")
    if not equals or not value:
        raise _unreadable(text)
    if kind == "replay" and not colon:
        return _with_argument(to, "return_sampling_mask", _switch(text, value))
    if kind == "python" and not colon:
        return _with(to, python=_executable(value))
    if kind == "tree" and not colon:
        return _with_tree(to, value, overlays)
    if kind == "env" and what:
        return _with(to, environment={**to.spec.environment, what: value})
    if kind == "arg" and what:
        return _with_argument(to, what, _json(text, value))
    raise _unreadable(text)


def _unreadable(text: str) -> ArmError:
    return ArmError(f"expected a setting of an arm as one of {FORMS}; found {text!r}")


def _with(to: ArmSpec, **changes: object) -> ArmSpec:
    spec = dataclasses.replace(to.spec, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(to, spec=spec)


def _with_argument(to: ArmSpec, name: str, value: object) -> ArmSpec:
    kept = {n: v for n, v in to.spec.arguments.items() if n != name}
    # Replay off is vLLM's own default, and older versions know no such argument.
    off = name == "return_sampling_mask" and value is False
    return _with(to, arguments=kept if off else {**kept, name: value})


def _switch(text: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise ArmError(f"expected replay=on or replay=off, found {text!r}")
    return value == "on"


def _json(text: str, value: str) -> object:
    try:
        return json.loads(value)
    except ValueError as error:
        raise ArmError(
            f'expected JSON behind the equals sign (a word in quotes: arg:x="fly"), found '
            f"{text!r}: {error}"
        ) from None


def _executable(value: str) -> str:
    path = Path(os.path.expanduser(value)).absolute()  # noqa: PTH111 - keeps unknown users
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ArmError(f"python=: expected an executable Python, found no such file: {path}")
    return str(path)


def _with_tree(to: ArmSpec, value: str, overlays: Path) -> ArmSpec:
    try:
        laid = tree.overlay(value, to.spec.python, overlays)
    except tree.TreeError as error:
        raise ArmError(f"tree=: {error}") from None
    found = _with(to, tree=laid.tree, overlay=laid.folder)
    return dataclasses.replace(found, changed=frozenset(laid.changed))
