"""How a simulated device is described, the same for every platform."""

from __future__ import annotations

import os
import platform as machine
from collections.abc import Mapping
from typing import Final

from tapml_targets.driver import DeviceDescription
from tapml_targets.limits import Limits
from tapml_targets.simulator import toolchain
from tapml_targets.simulator.checker import log_of_this_process

DEVICE_TYPE: Final = "simulated"
"""The type of a device that executes kernel text on this processor."""
IMPLEMENTATION: Final = "source-simulated"
"""The implementation behind such a device; also the last word of its name."""


def is_simulated(description: DeviceDescription) -> bool:
    """Whether a device is one of the simulator's, be it one that runs kernels or checks them."""
    return description.vendor_platform == IMPLEMENTATION


def simulated_device(
    platform: str,
    index: int,
    model: str,
    limits: Limits,
    details: Mapping[str, str] | None = None,
) -> DeviceDescription:
    """Describe a simulated device of a platform.

    Parameters
    ----------
    platform, index
        The platform's name, and the device's place in its list: behind all real ones.
    model
        What it stands for: ``sm_80``.
    limits
        Of what it stands for; blocks of more than 1024 threads are refused when they are run.
    details
        More for people and for the fingerprint.

    Raises
    ------
    SetupError
        If ziglang is missing, or this is no machine that it simulates on: list no device then.
    """
    return DeviceDescription(
        platform=platform,
        index=index,
        name=f"{model}, {IMPLEMENTATION}",
        vendor_platform=IMPLEMENTATION,
        device_type=DEVICE_TYPE if log_of_this_process() is None else "checker",
        driver_version=toolchain.version(),
        limits=limits,
        details={
            "machine": machine.machine(),
            "processors": str(os.cpu_count() or 1),
            **(details or {}),
        },
    )
