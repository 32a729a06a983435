"""The ROCm platform: AMD GPUs through AMD's bindings, and behind them two that are simulated."""

from __future__ import annotations

from typing import Final

from tapml_targets.driver import DeviceDescription, Driver
from tapml_targets.installed import install_hint
from tapml_targets.limits import Limits

REMEDY: Final = (
    "a GPU takes AMD's driver and ROCm (rocminfo shows whether they work) and "
    f"{install_hint('rocm')}; without a GPU kernels are simulated on Linux: "
    f"{install_hint('simulator')}"
)
DIALECT: Final = "hip-c"
# Architecture and lanes of its waves.
_SIMULATED: Final = (("gfx1100", 32), ("gfx90a", 64))


def list_devices() -> list[DeviceDescription]:
    """Every AMD GPU, in HIP's order, and behind them a simulated one for each width of waves.

    Raises
    ------
    SetupError
        If neither AMD's bindings nor ziglang is installed.
    """
    from tapml_targets.rocm.description import every_gpu
    from tapml_targets.simulator.platform_devices import real_and_simulated

    return real_and_simulated(every_gpu, _simulated)


def open_device(description: DeviceDescription) -> Driver:
    """Open the device that `description` names.

    Raises
    ------
    NoSuchDeviceError
        If it is not there any more.
    SetupError
        If it cannot be opened.
    """
    from tapml_targets.simulator.description import is_simulated

    if is_simulated(description):
        from tapml_targets.simulator.platform_devices import open_again

        return open_again(description, list_devices(), DIALECT)
    from tapml_targets.rocm.gpu import open_gpu

    return open_gpu(description)


def _simulated(index: int) -> list[DeviceDescription]:
    from tapml_targets.simulator.description import simulated_device

    return [
        simulated_device("rocm", index + place, architecture, _limits(architecture, width))
        for place, (architecture, width) in enumerate(_SIMULATED)
    ]


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
