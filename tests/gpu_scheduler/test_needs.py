from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_scheduler.needs import MarkerError, group_of, requested
from gpu_scheduler.placement import Request
from tests.fakes.nvml import GIB


def item(
    mark: pytest.Mark | None = None, fixtures: tuple[str, ...] = (), group: str | None = None
) -> pytest.Item:
    hook = SimpleNamespace(pytest_gpu_group=lambda **_: group)
    made = SimpleNamespace(
        nodeid="a/test_x.py::test_y",
        fixturenames=fixtures,
        get_closest_marker=lambda name: mark if name == "gpus" else None,
        config=SimpleNamespace(hook=hook),
    )
    return cast("pytest.Item", made)


def marked(*args: Any, **kwargs: Any) -> pytest.Item:  # noqa: ANN401 (whatever a marker may hold)
    return item(pytest.mark.gpus(*args, **kwargs).mark)


def test_marker_says_it_in_full() -> None:
    assert requested(marked(count=4, min_free_gib=1.5, topology="nvlink"), "cuda") == Request(
        count=4,
        kind="cuda",
        test="a/test_x.py::test_y",
        min_free_bytes=3 * GIB // 2,
        topology="nvlink",
    )


def test_marker_in_short() -> None:
    one = Request(count=1, kind="cpu", test="a/test_x.py::test_y")
    assert requested(item(pytest.mark.gpus.mark), "cpu") == one
    two = requested(marked(2), "cpu")
    assert two is not None
    assert two.count == 2


def test_a_test_that_takes_a_lease_needs_one_device() -> None:
    found = requested(item(fixtures=("tmp_path", "gpu_lease")), "cuda")
    assert found is not None
    assert found.count == 1


def test_others_need_none() -> None:
    assert requested(item(fixtures=("tmp_path",)), "cuda") is None


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [
        ((0,), {}, r"gpus\(0\): count is 0"),
        ((), {"count": -1}, r"gpus\(count=-1\): count is -1"),
        ((), {"count": True}, "count is True"),
        ((), {"count": 2.0}, r"count is 2\.0"),
        ((), {"count": "2"}, "count is '2'"),
        ((), {"min_free_gib": 0}, "min_free_gib is 0"),
        ((), {"min_free_gib": float("nan")}, "min_free_gib is nan"),
        ((), {"min_free_gib": float("inf")}, "min_free_gib is inf"),
        ((), {"topology": "ring"}, "topology is 'ring'"),
        ((1, 40), {}, "positional arguments"),
        ((), {"gib": 4}, "unexpected keyword argument 'gib'"),
    ],
)
def test_a_marker_that_cannot_be_meant(
    args: tuple[Any, ...], kwargs: dict[str, Any], found: str
) -> None:
    with pytest.raises(
        MarkerError, match=rf"(?s)expected: @pytest\.mark\.gpus\(.*found: .*{found}"
    ):
        requested(marked(*args, **kwargs), "cuda")


def test_group_is_the_hooks_or_the_tests_own_or_its_files() -> None:
    request = Request(count=1, kind="cuda", test="t")
    assert group_of(item(group="llama"), request) == group_of(item(group="llama"), None)
    assert group_of(item(), request) == "a/test_x.py::test_y"
    assert group_of(item(), None) == "file a/test_x.py"
