"""The ROCm platform: AMD GPUs of both widths of waves, simulated."""

from __future__ import annotations

from typing import Final

from tapml_targets.description import find_again
from tapml_targets.driver import DeviceDescription, Driver
from tapml_targets.installed import install_hint
from tapml_targets.limits import Limits

REMEDY: Final = (
    f"AMD GPUs are simulated, on Linux: {install_hint('simulator')}; a real one is reached by the "
    "platforms vulkan and opencl, not by HIP yet"
)
DIALECT: Final = "hip-c"
# Architecture and lanes of its waves.
_SIMULATED: Final = (("gfx1100", 32), ("gfx90a", 64))


def list_devices() -> list[DeviceDescription]:
    """A simulated device for each width of waves.

    Raises
    ------
    SetupError
        If ziglang is missing, or this is no machine to simulate on.
    """
    from tapml_targets.simulator.description import simulated_device

    return [
        simulated_device("rocm", index, architecture, _limits(architecture, width))
        for index, (architecture, width) in enumerate(_SIMULATED)
    ]


def open_device(description: DeviceDescription) -> Driver:
    """Open the device that `description` names.

    Raises
    ------
    NoSuchDeviceError
        If it is not there.
    """
    from tapml_targets.simulator.driver import open_simulated

    _, found = find_again(description, list_devices(), lambda each, _: each)
    return open_simulated(found, DIALECT, found.limits.subgroup_widths[0])


def _limits(architecture: str, width: int) -> Limits:
    return Limits(
        max_threads_per_block=1024,
        max_block=(1024, 1024, 1024),
        max_grid=(2147483647, 65535, 65535),
        max_shared_memory_bytes=65536,
        # As much as a process may well have.
        max_buffer_bytes=4 << 30,
        features=frozenset({"float16", "float64", "int16", "int64", "int8", "subgroups"}),
        subgroup_widths=(width, width),
        architecture=architecture,
    )
