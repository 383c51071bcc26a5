"""What the inject folder says of itself agrees with what stands in it."""

from pathlib import Path

import pytest

from tprig import injected as module
from tprig.checkers.anomalies import ANOMALIES
from tprig.injected import injected


def test_every_fault_names_an_anomaly_of_the_table() -> None:
    assert {fault.anomaly for fault in injected().faults.values()} <= set(ANOMALIES)
    assert injected().faults["mask-lost"].process == "core"
    assert injected().faults["mask-lost"].anomaly == "mask.absent"


def test_seams_are_told_by_name() -> None:
    assert "rejection_sampler.verify" in injected().seams


def test_it_is_asked_once() -> None:
    assert injected() is injected()


def test_a_folder_that_cannot_be_imported_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "INJECT", tmp_path)
    with pytest.raises(RuntimeError, match=r"No module named 'tprig_inject'"):
        injected.__wrapped__()
