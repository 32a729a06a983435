"""The CUDA platform: NVIDIA GPUs through cuda-core, and behind them one that is simulated."""

from __future__ import annotations

from typing import Final

from tapml_targets.driver import DeviceDescription, Driver
from tapml_targets.installed import install_hint
from tapml_targets.limits import Limits

REMEDY: Final = (
    "a GPU takes NVIDIA's driver (nvidia-smi shows whether it works) and "
    f"{install_hint('cuda')}; without a GPU kernels are simulated on Linux: "
    f"{install_hint('simulator')}"
)
DIALECT: Final = "cuda-c"
WARP: Final = 32
# Of every architecture since sm_70, as the profiles say.
_SIMULATED: Final = Limits(
    max_threads_per_block=1024,
    max_block=(1024, 1024, 64),
    max_grid=(2147483647, 65535, 65535),
    max_shared_memory_bytes=49152,
    # As much as a process may well have.
    max_buffer_bytes=4 << 30,
    features=frozenset(
        {
            "dynamic_shared_memory", "float16", "float64", "int16", "int64", "int8", "subgroups",
        }
    ),
    subgroup_widths=(WARP, WARP),
    architecture="sm_80",
)  # fmt: skip


def list_devices() -> list[DeviceDescription]:
    """Every NVIDIA GPU, in CUDA's order, and behind them the simulated one.

    Raises
    ------
    SetupError
        If neither cuda-core nor ziglang is installed.
    """
    from tapml_targets.simulator.platform_devices import real_and_simulated

    return real_and_simulated(_gpus, _simulated)


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
    from tapml_targets.cuda.gpu import open_gpu

    return open_gpu(description)


def _gpus() -> list[DeviceDescription]:
    from tapml_targets.cuda.description import every_gpu

    return [description for _, description in every_gpu()]


def _simulated(index: int) -> list[DeviceDescription]:
    from tapml_targets.simulator.description import simulated_device

    return [simulated_device("cuda", index, "sm_80", _SIMULATED)]
