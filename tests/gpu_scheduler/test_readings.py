"""What GPUs say of themselves while they work."""

from __future__ import annotations

import pynvml
import pytest

from gpu_scheduler import nvml
from gpu_scheduler.readings import THROTTLE_REASONS, reasons
from tests.fakes.nvml import FakeGpu, FakeNvml


def test_bits_are_named_the_lowest_first() -> None:
    assert reasons(0) == ()
    assert reasons(0x41) == ("gpu_idle", "hw_thermal_slowdown")
    assert reasons(1 << 40) == ("reason_0x10000000000",)


def test_names_are_nvmls() -> None:
    """`nvmlClocksThrottleReasonGpuIdle` is `gpu_idle`."""
    known = {
        value: name
        for name, value in vars(pynvml).items()
        if name.startswith("nvmlClocksThrottleReason") and isinstance(value, int)
    }
    for bit, name in THROTTLE_REASONS.items():
        spelled = known[bit].removeprefix("nvmlClocksThrottleReason").lower()
        assert spelled in (name.replace("_", ""), "userdefinedclocks"), bit


def test_what_the_driver_does_not_say_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(gpus=[FakeGpu(uuid="GPU-1", processes=[(7, None)])])
    monkeypatch.setattr(nvml, "pynvml", fake)
    (reading,) = nvml.readings(["GPU-1"])
    assert (reading.uuid, reading.processes) == ("GPU-1", 1)
    told = (reading.sm_clock_mhz, reading.memory_clock_mhz, reading.power_mw, reading.throttle)
    assert told == (None,) * 4
    assert not fake.is_open


def test_a_gpu_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "pynvml", FakeNvml(gpus=[FakeGpu(uuid="GPU-1")]))
    assert [reading.uuid for reading in nvml.readings(["GPU-2", "GPU-1"])] == ["GPU-1"]


def test_without_a_driver_there_is_none() -> None:
    assert nvml.readings([]) == ()


def test_all_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(gpus=[FakeGpu(uuid="GPU-1")])
    monkeypatch.setattr(nvml, "pynvml", fake)
    clocks = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}
    answers = {
        "nvmlDeviceGetClockInfo": lambda _handle, clock: clocks[clock],
        "nvmlDeviceGetTemperature": lambda _handle, _sensor: 41,
        "nvmlDeviceGetPowerUsage": lambda _handle: 300_000,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _handle: 0x4,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(fake, name, answer, raising=False)
    (reading,) = nvml.readings(["GPU-1"])
    assert (reading.sm_clock_mhz, reading.memory_clock_mhz) == (1980, 2619)
    assert (reading.temperature_c, reading.power_mw) == (41, 300_000)
    assert reading.throttle == ("sw_power_cap",)
