"""The entry point that vLLM loads in the engine core and in every worker."""

from __future__ import annotations

import os
from functools import cache

from tprig_inject import config, process


@cache
def load() -> None:
    """Make this process watchable, and fit for its platform; does nothing outside an engine.

    vLLM may call this more than once in a process.
    """
    settings = config.current()
    if settings is None:
        return
    if os.getpid() != settings.host_pid and not settings.forked:
        process.settle(settings.place)
        process.watch(settings.place)
    if settings.platform == "cpu":
        from tprig_inject import interpreter

        interpreter.supply()
    if settings.platform == "cuda":
        from tprig_inject import worker
        from tprig_inject.recorders import graphs

        graphs.watch(worker.hooks())
    if settings.ranks_per_device > 1:
        from tprig_inject import oversubscription

        oversubscription.allow(settings.ranks_per_device)
