"""The plugin's side of pytest-xdist: hooks alone; nothing of it is imported."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from gpu_scheduler import durations, needs
from gpu_scheduler.distribution import GpuScheduling, Node, Rest, Wanted, take_rest
from gpu_scheduler.errors import GpuSchedulerError
from gpu_scheduler.overview import DeviceStatus, status
from gpu_scheduler.placement import Kind

MODE = "gpu"
_INPUT = "gpu_scheduler"
_NUMBER = "PYTEST_XDIST_AUTO_NUM_WORKERS"
"""The user's own answer, which xdist reads."""


class Registrar:
    """Waits for xdist to be registered, which may be before or after this plugin.

    It then makes `--dist gpu` known: the choices of that option are a closed list, read when the
    command line is first parsed, which is before any other hook is called.
    """

    def __init__(self, parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
        self._parser = parser
        self._pluginmanager = pluginmanager

    def pytest_plugin_registered(self, plugin: object) -> None:
        """Take note of xdist."""
        if getattr(plugin, "__name__", None) != "xdist.plugin":
            return
        for option in self._parser.getgroup("xdist").options:
            if option.dest == "dist":
                option.attrs()["choices"].append(MODE)
        self._pluginmanager.register(Controller(), "gpu_scheduler.controller")
        self._pluginmanager.register(Worker(), "gpu_scheduler.worker")


class Controller:
    """Hooks of the process that hands tests out."""

    def __init__(self) -> None:
        self._scheduling: GpuScheduling | None = None
        self._workers = 0

    def pytest_xdist_auto_num_workers(self, config: pytest.Config) -> int | None:
        """With `-n auto`, as many workers as devices: none of them could use more."""
        if config.getoption("dist") != MODE or os.environ.get(_NUMBER):
            return None
        return len(_status(_kind(config))) or None

    def pytest_xdist_setupnodes(self, specs: Sequence[object]) -> None:
        """Count the workers that the run begins with."""
        self._workers = len(specs)

    def pytest_configure_node(self, node: Any) -> None:  # noqa: ANN401 (xdist's WorkerController)
        """Tell a worker that it is to rest between jobs."""
        node.workerinput[_INPUT] = node.config.getoption("dist") == MODE

    def pytest_xdist_make_scheduler(self, config: pytest.Config) -> GpuScheduling | None:
        """The scheduler of `--dist gpu`."""
        if config.getoption("dist") != MODE:
            return None
        try:
            known = durations.load(config.rootpath / durations.FILE)
        except durations.DurationsError:
            known = {}  # told when they are to be recorded

        def free(ours: Collection[int]) -> int:
            return sum(_free(device, ours) for device in _status(_kind(config)))

        self._scheduling = GpuScheduling(self._workers, config, free, known)
        return self._scheduling

    def pytest_xdist_node_collection_finished(self, node: Node, ids: list[str]) -> None:
        """Take the rest off what is shown and counted."""
        if self._scheduling is not None:
            self._scheduling.learn(node, take_rest(ids))


class Worker:
    """Hooks of the processes that run tests."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Append the rest, once all others have selected and sorted."""
        if not getattr(session.config, "workerinput", {}).get(_INPUT) or not session.items:
            return
        rest = Rest.from_parent(session, name="gpu_scheduler.rest")
        rest.tell(os.getpid(), [_wanted(item) for item in session.items])
        session.items.append(rest)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """The collection has been sent."""
        for item in session.items:
            if isinstance(item, Rest):
                item.told = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Pass over a rest; after the last one the fixtures of the session are torn down."""
        if not isinstance(item, Rest):
            return None
        if nextitem is None:
            for report in runtestprotocol(item, log=False, nextitem=None):
                if report.failed:
                    item.ihook.pytest_runtest_logreport(report=report)
        return True


def _wanted(item: pytest.Item) -> Wanted:
    request = item.stash[needs.REQUEST]
    return Wanted(
        devices=0 if request is None else request.count, group=needs.group_of(item, request)
    )


def _kind(config: pytest.Config) -> Kind:
    kind: Kind = config.getoption("--tprig-lease-kind")
    return kind


def _status(kind: Kind) -> tuple[DeviceStatus, ...]:
    try:
        return status(kind)
    except GpuSchedulerError:
        return ()  # the lease of a test says so better


def _free(device: DeviceStatus, ours: Collection[int]) -> bool:
    """Whether nobody but our own workers keeps a device from being handed out."""
    holder = device.holder
    return (
        device.quarantine is None
        and (holder is None or holder.pid in ours)
        and all(foreign.process.pid in ours for foreign in device.foreign)
    )
