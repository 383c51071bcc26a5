"""Which collectives a captured CUDA graph holds, and when it is replayed.

Python under a captured graph runs at its capture and never again, and engines capture before any
run is recorded. So captures are watched from the beginning of the process on, on CUDA alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tprig_inject import seams
from tprig_inject.context import Context
from tprig_inject.hooks import Hook, Hooks, Layer, Wrap
from tprig_inject.log import Log, Quick
from tprig_inject.recorders.paths import PATHS, Path

DIGEST_BYTES = 16
COMPARED = ("layer", "kind", "backend", "group", "ranks", "shape", "dtype", "root", "reduction")
"""What a template's digest is over: streams go by addresses, which ranks do not share."""


@dataclass
class Template:
    """What one capture held."""

    key: str
    operations: list[dict[str, Any]] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """BLAKE2b-128 over the operations' signatures, in hex."""
        told = [[operation[name] for name in COMPARED] for operation in self.operations]
        data = json.dumps(told, separators=(",", ":")).encode()
        return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


class Captures:
    """The graphs that this process has captured."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self.templates: dict[int, Template] = {}
        self._current: Template | None = None
        self._inner: list[Hook] = []
        self._number = 0

    def watch(self) -> None:
        """Watch every capture from now on; where a seam has moved, none."""
        self._hooks.add("graph.capture_begin", Layer.FAULT, self._begin)
        self._hooks.add("graph.capture_end", Layer.FAULT, self._end)

    def _begin(self, original: Any) -> Any:
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            self._current = self.templates[id(graph)] = Template(f"graph {self._number}")
            self._number += 1
            # An engine captures hundreds of times: what is put in place stays until a run begins.
            if not self._inner:
                self._inner = [hook for path in PATHS if (hook := self._hook(path)) is not None]
            return original(graph, *args, **kwargs)

        return capture_begin

    def _hook(self, path: Path) -> Hook | None:
        try:
            return self._hooks.add(path.seam, Layer.RECORDER, self._keeping(path))
        except seams.SeamMovedError:
            # The coverage of the run will say that this path is not watched.
            return None

    def _keeping(self, path: Path) -> Wrap:
        parameters = self._hooks.table[path.seam].parameters

        def wrap(original: Any) -> Any:
            def collective(*args: Any, **kwargs: Any) -> Any:
                bound = dict(zip(parameters, args, strict=False)) | kwargs
                if self._current is not None:
                    self._current.operations.append(_told(path, bound))
                return original(*args, **kwargs)

            return collective

        return wrap

    def _end(self, original: Any) -> Any:
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(graph, *args, **kwargs)
            finally:
                self._current = None

        return capture_end

    def release(self) -> None:
        """Take out what watched the collectives of captures."""
        for hook in self._inner:
            self._hooks.remove(hook)
        self._inner = []


def _told(path: Path, bound: dict[str, Any]) -> dict[str, Any]:
    try:
        told = path.tell(bound)
    except Exception as error:  # noqa: BLE001 - a capture must not fail for its record
        told = {"layer": path.layer, "kind": path.kind, "backend": path.backend,
                "group": f"unknown: {type(error).__name__}", "ranks": [], "shape": None,
                "dtype": None, "root": None, "reduction": None, "stream": None}  # fmt: skip
    return told | {"mode": "capture", "location": []}


_captures: list[Captures] = []


def watch(hooks: Hooks) -> None:
    """Watch this process's captures, once."""
    if not _captures:
        _captures.append(Captures(hooks))
        _captures[0].watch()


class Replays:
    """Writes each template once, before its first replay, and each replay as a call."""

    def __init__(self, context: Context, log: Log) -> None:
        self._context = context
        self._log = log
        self._digests: dict[int, tuple[Template, str]] = {}

    def tell_known(self) -> None:
        """Write the templates of all graphs that were captured so far."""
        for graph in _known():
            self.digest(graph)

    def digest(self, graph: int) -> str:
        """The digest of a graph's template; `unknown` for one whose capture was not seen."""
        template = _known().get(graph)
        if template is None:
            return "unknown"
        told = self._digests.get(graph)
        # A graph that was let go leaves its address to one that is captured later.
        if told is None or told[0] is not template:
            told = self._digests[graph] = (template, template.digest)
            self._tell(*told)
        return told[1]

    def _tell(self, template: Template, digest: str) -> None:
        operations = [
            self._log.number(json.dumps(operation, sort_keys=True), operation)
            for operation in template.operations
        ]
        record = {"key": template.key, "digest": digest, "operations": operations}
        self._context.write({"type": "template", **record})

    def wrap(self, original: Any) -> Any:
        """A wrapper for `CUDAGraph.replay`."""

        def key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
            del kwargs
            return "replay", self.digest(id(args[0]))

        def told(
            args: tuple[Any, ...], kwargs: dict[str, Any], key: Hashable, frame: FrameType
        ) -> int:
            del kwargs
            number = self._log.find(key, frame)
            told = _replay(self.digest(id(args[0])))
            return self._log.tell(key, told) if number is None else number

        return self._log.around(original, Quick("graph.replay", key=key), told)


def _known() -> dict[int, Template]:
    return _captures[0].templates if _captures else {}


def _replay(digest: str) -> dict[str, Any]:
    from vllm.distributed.parallel_state import get_world_group

    return {"layer": "graph", "kind": "replay", "backend": None, "group": "",
            "ranks": list(get_world_group().ranks), "shape": None, "dtype": None,
            "mode": "replay", "template": digest}  # fmt: skip


def _in_mode(log: Log, mode: str) -> Wrap:
    def wrap(original: Any) -> Any:
        def mark(*args: Any, **kwargs: Any) -> Any:
            log.mode = mode
            return original(*args, **kwargs)

        return mark

    return wrap


def record(context: Context, log: Log) -> None:
    """Write the templates that are known, and each replay as a call of its own.

    Raises:
        seams.SeamMovedError: if a seam does not look as expected.
    """
    if _captures:
        _captures[0].release()
    replays = Replays(context, log)
    context.wrap("graph.capture_begin", Layer.RECORDER, _in_mode(log, "capture"))
    context.wrap("graph.capture_end", Layer.RECORDER, _in_mode(log, "eager"))
    context.wrap("graph.replay", Layer.RECORDER, replays.wrap)
    replays.tell_known()
