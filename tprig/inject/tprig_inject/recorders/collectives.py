"""Records every collective of a worker, on the semantic and on the wire layer apart.

Each layer's hooks are their own, so that the two account for one another. A path whose seam has
moved is left out by itself, and the coverage says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from pathlib import Path as FilePath
from types import FrameType
from typing import Any

from tprig_inject import config, seams
from tprig_inject.context import Context
from tprig_inject.hooks import Layer, Wrap
from tprig_inject.log import Log
from tprig_inject.recorders import graphs
from tprig_inject.recorders.paths import PATHS, UNHOOKED, Path
from tprig_inject.ring import Ring

SEAMS = ("model_runner.execute_model",)
"""What nothing can be recorded without; each path rests on a seam of its own besides."""

SPILLED_LEAST = 1024
"""Calls that are written at once: far fewer than a ring holds, and than the client reads of it."""


def install(context: Context) -> None:
    """Write operations, calls, templates and the coverage."""
    log = context.log = Log(Ring(_ring_path()), context.write)
    # Taken out last, when no call can begin any more.
    context.on_end(log.spill)
    for path in PATHS:
        _hook(context, log, path)
    for unhooked in UNHOOKED:
        _cover(
            context,
            path=unhooked.name,
            layer=unhooked.layer,
            hooked=False,
            needed=_taken(unhooked.taken, context.model_runner),
            detail=unhooked.why,
        )
    hooked, detail = True, context.hooks.table["graph.replay"].target
    try:
        graphs.record(context, log)
    except seams.SeamMovedError as error:
        hooked, detail = False, str(error)
    _cover(context, path="graph.replay", layer="graph", hooked=hooked, needed=True, detail=detail)
    _step_wise(context, log)


def _ring_path() -> FilePath | None:
    settings = config.current()
    return None if settings is None else FilePath(settings.runtime) / f"{os.getpid()}.ring"


def _taken(taken: Callable[[Any], bool], model_runner: Any) -> bool:
    """Whether a path may be taken; what cannot be told is taken to be."""
    try:
        return taken(model_runner.vllm_config)
    except AttributeError:
        return True


def _hook(context: Context, log: Log, path: Path) -> None:
    try:
        context.wrap(path.seam, Layer.RECORDER, recording(log, path, context))
    except seams.SeamMovedError as error:
        hooked, detail = False, str(error)
    else:
        hooked, detail = True, context.hooks.table[path.seam].target
    _cover(
        context,
        path=path.seam,
        layer=path.layer,
        hooked=hooked,
        needed=not path.cuda_only or _on_cuda(),
        detail=detail,
    )


def _on_cuda() -> bool:
    settings = config.current()
    return settings is not None and settings.platform == "cuda"


def _cover(context: Context, **coverage: Any) -> None:
    context.write({"type": "coverage", **coverage})


def recording(log: Log, path: Path, context: Context) -> Wrap:
    """A wrapper that logs a call's beginning and end, whatever becomes of it."""
    parameters = context.hooks.table[path.seam].parameters
    broken: list[str] = []

    def told(
        args: tuple[Any, ...], kwargs: dict[str, Any], key: Hashable, frame: FrameType
    ) -> int | None:
        """The number of a call; None for one that cannot be told, which is confessed once."""
        try:
            bound = dict(zip(parameters, args, strict=False)) | kwargs
            key = path.key(bound) if key is None else key
            number = log.find(key, frame)
            return log.tell(key, path.tell(bound)) if number is None else number
        except Exception as error:  # noqa: BLE001 - the engine must not fail for its record
            if not broken:
                broken.append(repr(error))
                _report(context, path, error)
            return None

    return lambda original: log.around(original, path.quick, told)


def _report(context: Context, path: Path, error: Exception) -> None:
    detail = f"a call could not be told: {type(error).__name__}: {error}"
    _cover(context, path=path.seam, layer=path.layer, hooked=False, needed=True, detail=detail)


def _step_wise(context: Context, log: Log) -> None:
    """Spill between steps, so that a ring never holds much more than one and what is due."""

    def wrap(original: Any) -> Any:
        def execute_model(*args: Any, **kwargs: Any) -> Any:
            log.spill(SPILLED_LEAST)
            log.begin_step(context.step + 1)
            return original(*args, **kwargs)

        return execute_model

    context.wrap("model_runner.execute_model", Layer.RECORDER, wrap)
