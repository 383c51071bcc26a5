from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from gpu_scheduler.scheduler import lease
from gpu_scheduler.seats import seated

SHOW = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), sorted(os.sched_getaffinity(0)))"


def seen_by_a_child() -> str:
    return subprocess.check_output([sys.executable, "-c", SHOW], text=True).strip()


def test_children_see_the_leased_gpus_while_it_lasts() -> None:
    cores = sorted(os.sched_getaffinity(0))
    with lease(1, kind="cuda", test="mine", wait_s=0) as held, seated(held):
        assert seen_by_a_child() == f"0 {cores}"
    assert seen_by_a_child() == f"None {cores}"


def test_children_run_on_the_leased_cores_while_it_lasts() -> None:
    cores = os.sched_getaffinity(0)
    with lease(1, kind="cpu", test="mine", wait_s=0) as held, seated(held):
        assert held.affinity is not None
        assert seen_by_a_child() == f"None {sorted(held.affinity)}"
    assert os.sched_getaffinity(0) == cores


def test_what_was_outside_is_back_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with lease(1, kind="cuda", test="mine", wait_s=0) as held:
        with pytest.raises(ZeroDivisionError), seated(held):
            _ = 1 / (os.environ["CUDA_VISIBLE_DEVICES"] != "1")
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,0"
        assert "CUDA_DEVICE_ORDER" not in os.environ


@pytest.mark.parametrize("uses_cuda", [True, False])
def test_a_process_that_uses_cuda_itself_keeps_what_it_sees(
    monkeypatch: pytest.MonkeyPatch, *, uses_cuda: bool
) -> None:
    """CUDA has read the variable by then; the next lease is sought among these devices."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    cuda = SimpleNamespace(is_initialized=lambda: uses_cuda)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    with lease(1, kind="cuda", test="mine", wait_s=0) as held, seated(held):
        pass
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ("1" if uses_cuda else "1,0")
