from __future__ import annotations

import pickle

import pytest

from gpu_scheduler.errors import GpuSchedulerError, LeaseTimeout, LockFolderError, Unsatisfiable
from gpu_scheduler.placement import Refusal


@pytest.mark.parametrize("kind", [LockFolderError, Unsatisfiable])
def test_message_has_all_four_parts(kind: type[GpuSchedulerError]) -> None:
    lines = str(kind("two", "one", "no more than there are", "ask for one")).splitlines()
    assert [line.split(":")[0] for line in lines] == ["expected", "found", "rule", "remedy"]


def test_timeout_lists_its_refusals_and_crosses_processes() -> None:
    refusal = Refusal(device_id="GPU-1", reason="leased by bob", leased=True)
    error = LeaseTimeout("e", "f", "r", "m", (refusal,))
    assert str(error).splitlines()[-1] == "  GPU-1: leased by bob"
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 (its own bytes)
    assert copy.refusals == (refusal,)
    assert str(copy) == str(error)
