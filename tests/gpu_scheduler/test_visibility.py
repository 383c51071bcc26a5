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
        ("0,GPU-cccc-3", [0]),  # the first entry decides the form of all
        ("GPU-cccc-3,0", [2]),
        ("MIG-cccc-3", []),
    ],
)
def test_outer_value(value: str | None, ordinals: list[int]) -> None:
    assert [each.index for each in visible(GPUS, value)] == ordinals


UUID = "GPU-be19222f-9334-0519-4c03-af36a4a8f58b"
ONE_GPU = (replace(GPUS[0], uuid=UUID),)
SHOWN_BY_CUDA = (
    *("0", " 0", "0 ", "\t0", "00", "+0", "-0", "0x0", "0abc", "0 1", "0.5", "0_0", "0;0"),
    *("0,1", "0, 1", "0,", "0,-1", "0,,0", "0,9,0", "0,x,0", f"0,{UUID}", "0,MIG-x", "0,GPU-x,0"),
    *(UUID, UUID.upper(), UUID[:8], UUID[:5], UUID[:13], "GPU-be-19", "GPU-be19222f9334", "GPU--"),
    *(f"{UUID}0", f"{UUID} ", f"{UUID}-0", f"{UUID}--", f"{UUID}/0/0"),
    *(f"{UUID},0", f"{UUID},x", f"{UUID},GPU-", f"{UUID},9,{UUID}"),
)
HIDDEN_BY_CUDA = (
    *("", "-1", "1,0", ",0", "x,0", "\u0660", "all", "none", "NoDevFiles", "4294967297", "9" * 23),
    *("0,0", "0,+0", "-0,0", "0,0x0", " 0 ,0", f"{UUID},{UUID}", "GPU-be19,GPU-be192"),
    *(f"{UUID}x,GPU-be192", f" {UUID}", f"gpu-{UUID[4:]}", UUID.replace("-", "", 1)),
    *("GPU", "GPU-", "GPU-x", "GPU-be19x", "GPU-be19 ", "GPU-be19\t", "GPU-be19222f-x"),
    f"MIG-{UUID}/0/0",
)


@pytest.mark.parametrize("value", SHOWN_BY_CUDA)
def test_one_gpu_is_shown_where_cuda_showed_it(value: str) -> None:
    """Seen with cuDeviceGetCount of driver 580.159.04 on a host of one H200."""
    assert visible(ONE_GPU, value) == ONE_GPU


@pytest.mark.parametrize("value", HIDDEN_BY_CUDA)
def test_one_gpu_is_hidden_where_cuda_hid_it(value: str) -> None:
    assert visible(ONE_GPU, value) == ()


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
