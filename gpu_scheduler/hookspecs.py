"""What a test suite may tell the plugin of its tests. Implement these like any hook of pytest."""

from __future__ import annotations

import pytest

from gpu_scheduler.placement import Request


@pytest.hookspec(firstresult=True)
def pytest_gpu_request(item: pytest.Item) -> Request | None:
    """Returns the devices that a test needs; by default what its marker `gpus` says.

    For suites whose own markers or parameters decide it. The plugin refuses at collection what
    this host can never serve, and hands tests out by it.
    """


@pytest.hookspec(firstresult=True)
def pytest_gpu_group(item: pytest.Item) -> str | None:
    """Returns the name of what a test shares with others, such as the spec of its engine.

    With `--dist gpu` tests of one name run on one worker, one after another. By default it is the
    name of xdist's own marker `xdist_group`; a test that needs no device goes with its file.
    """
