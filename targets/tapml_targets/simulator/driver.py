"""Opens simulated devices: one that runs kernels, or where a process checks, one that checks."""

from __future__ import annotations

import os
from typing import Final

from tapml_targets.driver import DeviceDescription
from tapml_targets.errors import InputError
from tapml_targets.simulator import toolchain
from tapml_targets.simulator.checked_driver import CheckedDriver
from tapml_targets.simulator.checker import log_of_this_process
from tapml_targets.simulator.dialects import dialect_named
from tapml_targets.simulator.launching import Schedule
from tapml_targets.simulator.simulated_driver import SimulatedDriver

SCHEDULE_VARIABLE: Final = "TAPML_SIMULATOR_SCHEDULE"
"""In which order threads run: ``ascending`` (the default), ``descending``, ``random:SEED``."""
WAVE_WIDTHS: Final = (32, 64)


def open_simulated(
    description: DeviceDescription,
    dialect: str,
    wave_width: int = 32,
    *,
    schedule: Schedule | None = None,
) -> SimulatedDriver:
    """Open a simulated device of a platform.

    Parameters
    ----------
    description
        The device as the platform lists it, by
        :func:`tapml_targets.simulator.description.simulated_device`.
    dialect
        What its modules hold.
    wave_width
        Threads of a wave (warp, SIMD group): 32 or 64.
    schedule
        In which order threads run; None asks :data:`SCHEDULE_VARIABLE` in the environment.

    Raises
    ------
    InputError
        If there is no such dialect, width or schedule.
    SetupError
        If ziglang is missing, or this is no machine that it simulates on.
    """
    if wave_width not in WAVE_WIDTHS:
        raise InputError(f"a simulated wave has 32 or 64 threads, not {wave_width}")
    dialect_named(dialect)
    toolchain.version()
    if schedule is None:
        schedule = Schedule.read(os.environ.get(SCHEDULE_VARIABLE) or "ascending")
    if (log := log_of_this_process()) is not None:
        return CheckedDriver(description, dialect, wave_width, schedule, log)
    return SimulatedDriver(description, dialect, wave_width, schedule)
