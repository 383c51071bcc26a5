"""What a test asks for: the marker `gpus`, and the hooks that may say it in its stead."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import get_args

import pytest

from gpu_scheduler.placement import Kind, Request, Topology

MARKER = (
    "gpus(count=1, *, min_free_gib=None, topology=None): the devices that the test needs at once, "
    "the free memory that each must have, and whether NVLink must connect them ('nvlink')"
)
_GIB = 1024**3

REQUEST = pytest.StashKey[Request | None]()
"""What a collected test needs."""


class MarkerError(Exception):
    """A marker says what cannot be meant."""


def requested(item: pytest.Item, kind: Kind) -> Request | None:
    """Returns what the marker of a test asks for; a test that takes a lease needs one device.

    Raises:
        MarkerError: The marker is not as `MARKER` says.
    """
    mark = item.get_closest_marker("gpus")
    if mark is None:
        takes = "gpu_lease" in getattr(item, "fixturenames", ())
        return _gpus(kind, item.nodeid) if takes else None
    try:
        return _gpus(kind, item.nodeid, *mark.args, **mark.kwargs)
    except (TypeError, ValueError) as error:
        raise MarkerError(
            f"expected: @pytest.mark.{MARKER.partition(':')[0]}\n"
            f"found:    {_written(mark)}: {_reason(error)}\n"
            "rule:     count is a whole number from 1, min_free_gib a number above 0, and topology "
            f"one of {', '.join(get_args(Topology))}\n"
            f"remedy:   correct the marker of {item.nodeid}"
        ) from None


def group_of(item: pytest.Item, request: Request | None) -> str:
    """Returns the group of a test: as the hook says, else its file's, or one of its own."""
    named = item.config.hook.pytest_gpu_group(item=item)
    if named is not None:
        return f"group {named}"
    return item.nodeid if request is not None else f"file {item.nodeid.partition('::')[0]}"


def lease_wait_s(config: pytest.Config) -> float:
    """Returns the longest wait for devices, in seconds.

    Raises:
        pytest.UsageError: It is not one.
    """
    value: float = config.getoption("--tprig-lease-wait")
    if not value >= 0:
        raise pytest.UsageError(
            f"--tprig-lease-wait: expected seconds, 0 to ask once or inf to wait as long as it "
            f"takes, found {value:g}"
        )
    return value


def _gpus(
    kind: Kind,
    test: str,
    count: int = 1,
    *,
    min_free_gib: float | None = None,
    topology: Topology | None = None,
) -> Request:
    if not _is_number(count, (int,)) or count < 1:
        raise ValueError(f"count is {count!r}")
    if min_free_gib is not None and not (
        _is_number(min_free_gib, (int, float)) and 0 < min_free_gib < math.inf
    ):
        raise ValueError(f"min_free_gib is {min_free_gib!r}")
    if topology is not None and topology not in get_args(Topology):
        raise ValueError(f"topology is {topology!r}")
    floor = None if min_free_gib is None else math.ceil(min_free_gib * _GIB)
    return Request(count=count, kind=kind, test=test, min_free_bytes=floor, topology=topology)


def _is_number(value: object, types: Iterable[type]) -> bool:
    return isinstance(value, tuple(types)) and not isinstance(value, bool)


def _written(mark: pytest.Mark) -> str:
    words = [repr(each) for each in mark.args]
    words += [f"{name}={value!r}" for name, value in mark.kwargs.items()]
    return f"gpus({', '.join(words)})"


def _reason(error: Exception) -> str:
    """Without the name of the function behind the marker."""
    return str(error).removeprefix("_gpus() ")
