"""What a GPU says of itself while it works: clocks, temperature, power, and what holds it down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A GPU at one moment. Unknown is `None`, never 0."""

    uuid: str
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    temperature_c: int | None
    power_mw: int | None
    throttle: tuple[str, ...] | None
    """Why its clocks are below what was asked for; empty when nothing holds them down."""
    processes: int | None
    """Processes with a compute context on it."""


THROTTLE_REASONS: dict[int, str] = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""NVML's `nvmlClocksEventReason*` by their bits (nvml.h); an unknown bit is told by its number."""


def reasons(mask: int) -> tuple[str, ...]:
    """The names of the bits that are set, the lowest first."""
    bits = [1 << place for place in range(mask.bit_length()) if mask >> place & 1]
    return tuple(THROTTLE_REASONS.get(bit, f"reason_{bit:#x}") for bit in bits)
