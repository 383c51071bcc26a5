from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler import host
from gpu_scheduler.device import Gpu
from gpu_scheduler.errors import VisibilityError
from gpu_scheduler.visibility import affinity, check_order, environment_for, visible
from tests.gpu_scheduler.test_device import gpu

UUIDS = ("GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3")
GPUS = tuple(replace(gpu(None), uuid=uuid, index=n) for n, uuid in enumerate(UUIDS))


@pytest.mark.parametrize(
    ("value", "ordinals"),
    [
        (None, [0, 1, 2]),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("GPU-cccc-3,GPU-aaaa-1", [2, 0]),
        ("GPU-c", [2]),
        ("GPU-aaaa,GPU-aab", [0, 1]),
        ("GPU-aa", []),  # not unique
        ("0,GPU-aa,1", [0]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [0]),  # an invalid entry hides the rest
        ("1,3,0", [1]),
        ("0,,1", [0]),
        ("0,x", [0]),
        ("0,0", []),  # a device twice makes none visible
        ("0,1,0", []),
        ("GPU-cccc-3,GPU-cccc", []),
        ("0,9,0", [0]),
        ("MIG-GPU-aaaa-1/0/0", []),
        ("NoDevFiles", []),
        ("٣", []),  # digits to Python, not to CUDA
    ],
)
def test_outer_value(value: str | None, ordinals: list[int]) -> None:
    assert [each.index for each in visible(GPUS, value)] == ordinals


@given(st.lists(st.sampled_from(GPUS), unique=True, min_size=1))
def test_child_of_a_lease_sees_what_was_leased_in_that_order(leased: list[Gpu]) -> None:
    value = environment_for(leased)["CUDA_VISIBLE_DEVICES"]
    assert visible(GPUS, value) == tuple(leased)
    assert [int(entry) for entry in value.split(",")] == [each.index for each in leased]


@given(st.text() | st.lists(st.sampled_from(["0", "1", "GPU-a", "-1", ""])).map(",".join))
def test_nothing_is_visible_twice(value: str) -> None:
    shown = visible(GPUS, value)
    assert len(set(shown)) == len(shown)


def test_child_counts_in_pci_order() -> None:
    assert environment_for(GPUS[1:]) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "1,2",
    }
    assert affinity(GPUS) is None


def test_core_slots_are_an_affinity() -> None:
    slots = host.core_slots()
    assert environment_for(slots) == {}
    assert affinity(slots[:1]) == frozenset({slots[0].core})


MIXED = (GPUS[0], replace(GPUS[1], name="NVIDIA T400"))


def test_ordinals_on_a_mixed_host_need_an_order() -> None:
    with pytest.raises(VisibilityError, match="PCI_BUS_ID"):
        check_order(MIXED, {"CUDA_VISIBLE_DEVICES": "0"})


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "GPU-aaaa-1"},
        {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    ],
)
def test_meaning_that_is_clear_is_taken(environment: dict[str, str]) -> None:
    check_order(MIXED, environment)
    check_order(GPUS, {"CUDA_VISIBLE_DEVICES": "0"})
